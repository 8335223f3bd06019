"""How simulated cores are shared: as Linux does it, not evenly."""

from __future__ import annotations

import pytest

from headrace.diagnose.training.simulation_changes import _by_item
from headrace.diagnose.training.simulation_machine import TICK, Machine, Need, Process


class _Told:
    """Says when processes ended."""

    def __init__(self, cores: float) -> None:
        self.machine = Machine(cores)
        self.ends: dict[str, float] = {}

    def start(self, name: str, *needs: Need) -> None:
        """Begin a process that needs these, one after another."""

        def process() -> Process:
            yield from needs
            self.ends[name] = self.machine.now

        self.machine.start(process())


def test_threads_take_turns_at_ticks() -> None:
    """Two threads on one core: each waits for the other, and the second ends when both have done their work."""
    told = _Told(1.0)
    for name in ("first", "second"):
        told.start(name, Need(0.0, 3 * TICK))
    told.machine.run()
    assert told.ends == {"first": pytest.approx(5 * TICK), "second": pytest.approx(6 * TICK)}
    assert told.machine.run_delay == pytest.approx(5 * TICK)


def test_who_wakes_comes_before_who_has_had_more_of_the_core() -> None:
    """A thread that slept does its short work at once, in the middle of another one's."""
    told = _Told(1.0)
    told.start("long", Need(0.0, 0.1))
    told.start("short", Need(0.0502, 0.001))
    told.machine.run()
    assert told.ends["short"] == pytest.approx(0.0512)
    assert told.ends["long"] == pytest.approx(0.101)


def test_an_idle_core_leaves_a_thread_waiting_for_another_for_some_ticks() -> None:
    """Three threads on two cores: when one core becomes idle, two go on to share the other until queues are balanced."""
    told = _Told(2.0)
    told.start("short", Need(0.0, TICK / 2))
    for name in ("one", "other"):
        told.start(name, Need(0.0, 20 * TICK))
    told.start("beside", Need(0.0, 20 * TICK))
    told.machine.run()
    even = (60 + 0.5) * TICK / 2
    assert max(told.ends.values()) > even + TICK / 4
    assert told.machine.busy == pytest.approx(60.5 * TICK)


def test_many_cores_leave_nobody_waiting() -> None:
    """With more cores than threads each thread has its own, whichever woke first."""
    told = _Told(16.0)
    for number in range(8):
        told.start(str(number), *([Need(0.003 + number / 1e4, 0.01)] * 5))
    told.machine.run()
    assert told.machine.run_delay == pytest.approx(0.0)
    assert told.ends["7"] == pytest.approx(5 * (0.0037 + 0.01))


def test_a_quota_is_never_exceeded() -> None:
    """One and a half cores do one and a half seconds of work in a second."""
    told = _Told(1.5)
    for name in ("first", "second", "third"):
        told.start(name, Need(0.0, 1.0))
    told.machine.run()
    assert told.machine.now == pytest.approx(2.0, rel=0.02)
    assert told.machine.busy == pytest.approx(3.0)


def test_items_that_are_waited_for_are_loaded_one_by_one() -> None:
    """Eight items, each read for a millisecond, are eight waits; a batch that waits for nothing is one piece."""
    pieces = _by_item((Need(0.008, 0.004),), 8)
    assert pieces == (Need(0.001, 0.0005),) * 8
    assert _by_item((Need(0.00001, 0.004),), 8) == (Need(0.00001, 0.004),)
    assert len(_by_item((Need(0.5, 0.004),), 256)) == 8
