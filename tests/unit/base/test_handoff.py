"""The price of a hand-off on this machine."""

import os
import threading

from headrace.base.handoff import handoff_cost


def test_a_hand_off_costs_something() -> None:
    """Two threads that wake each other use CPU time, and take at least as long as the clock can tell."""
    cost = handoff_cost()
    assert cost.cpu_seconds > 0
    assert cost.wall_seconds > 0


def test_the_price_is_measured_once() -> None:
    """Every caller of a process gets the same price, so that two decisions of one run cannot contradict each other."""
    assert handoff_cost() is handoff_cost()


def test_measuring_leaves_nothing_behind() -> None:
    """The threads are gone afterwards, and the caller may use the cores that it could use before."""
    cores = os.sched_getaffinity(0)
    handoff_cost.cache_clear()
    handoff_cost()
    assert os.sched_getaffinity(0) == cores
    assert "headrace-handoff" not in {thread.name for thread in threading.enumerate()}


def test_no_threads_no_price(monkeypatch) -> None:
    """Where the system gives no thread the price is 0, and nothing breaks."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    handoff_cost.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert handoff_cost().cpu_seconds == 0
    handoff_cost.cache_clear()
