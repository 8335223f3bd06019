"""What is counted of one live stream: ages of answers, jitter against its own clock, stalls."""

from __future__ import annotations

import pytest

from headrace.base.records import DELIVERED, Outcome, OutcomeKind
from headrace.base.stream_tally import StreamTally


def come(tally: StreamTally, *times: float, late: float = 0.0, connection: int = 1) -> None:
    """Let frames come at these times of the stream's own clock, each second one so much later."""
    for number, own in enumerate(times):
        tally.arrived(100 + own + number % 2 * late, own, connection)


def every(step: float, number: int, begin: float = 0.0) -> list[float]:
    """Return times that lie so far apart."""
    return [begin + step * one for one in range(number)]


def test_jitter_is_what_the_two_clocks_differ_by() -> None:
    """A frame every 40 ms of which each second one is 5 ms late: 5 ms; where none is, nothing, to the resolution of floats."""
    uneven, even = StreamTally("a", 100.0), StreamTally("b", 100.0)
    come(uneven, *every(0.04, 800), late=0.005)
    come(even, *every(0.04, 800))
    found = uneven.record(200.0)
    assert (found.jitter_p50_seconds, found.jitter_p99_seconds) == pytest.approx((0.005, 0.005), abs=1e-6)
    assert even.record(200.0).jitter_p99_seconds == pytest.approx(0.0, abs=1e-6)


def test_a_clock_that_jumps_or_begins_anew_is_no_jitter() -> None:
    """Neither a new connection, whose first frame may have waited, nor a jump, nor a stream without a clock."""
    tally = StreamTally("a", 100.0)
    come(tally, *every(0.04, 400))
    tally.arrived(116.04, 7000.0, 1)
    come(tally, *every(0.04, 400, begin=20.0), connection=2)
    assert tally.record(137.0).jitter_p99_seconds == pytest.approx(0.0, abs=1e-6)
    silent = StreamTally("b", 100.0)
    for number in range(100):
        silent.arrived(100.0 + number, None, 1)
    assert silent.record(200.0).jitter_p50_seconds is None


def test_stalls_are_long_for_the_stream() -> None:
    """Three seconds are a stall of a stream of 25 frames a second, also at its end, and none of one that sends every second."""
    fast, slow, gone = (StreamTally(name, 100.0) for name in ("fast", "slow", "gone"))
    come(fast, *every(0.04, 100), *every(0.04, 100, begin=7.0))
    come(slow, *every(1.0, 8), 10.0)
    come(gone, *every(0.04, 100))
    for tally in (fast, slow, gone):
        tally.close(111.0)
    record = fast.record(999.0)
    assert (record.stalls, record.stalled_seconds) == (1, pytest.approx(3.04))
    assert record.seconds == pytest.approx(11.0)
    assert slow.record(999.0).stalls == 0
    assert gone.record(999.0).longest_stall_seconds == pytest.approx(7.04)


def test_a_stream_that_never_came_stood_still_all_the_time() -> None:
    """From the beginning of the run."""
    record = StreamTally("a", 100.0).record(130.0)
    assert (record.seconds, record.stalls, record.stalled_seconds, record.connections) == (30.0, 1, 30.0, 0)


def test_connections_are_counted() -> None:
    """Those that brought frames."""
    tally = StreamTally("a", 100.0, is_urgent=True)
    come(tally, 0.0, 0.2)
    come(tally, 0.4, 0.6, connection=4)
    record = tally.record(101.0)
    assert (record.connections, record.is_urgent) == (2, True)


def test_ends_and_ages() -> None:
    """Percentiles are of delivered frames, and none is given from too few; reasons are counted by their code."""
    tally = StreamTally("a", 100.0)
    for number in range(10):
        tally.ended(101.0, 0.1, DELIVERED)
        tally.ended(101.0, 9.9, Outcome(OutcomeKind.REJECTED, f"deadline.passed: frame {number}"))
    assert tally.record(102.0).age_p50_seconds is None
    tally.ended(101.0, 0.1, DELIVERED)
    assert tally.record(102.0).age_p50_seconds == pytest.approx(0.1)
    assert tally.ends() == {"delivered": 11, "deadline.passed": 10}
    assert tally.recent(102.0, 10.0) == (1.1, [0.1] * 11)


def test_reasons_without_end_fill_no_memory() -> None:
    """Each frame with a text of its own: the first ones are told apart."""
    tally = StreamTally("a", 100.0)
    for number in range(1000):
        tally.ended(101.0, None, Outcome(OutcomeKind.REJECTED, f"frame {number} is bad"))
    assert len(tally.ends()) <= 51
    assert sum(tally.ends().values()) == 1000


def test_what_was_in_hand_when_the_run_ended_did_not_fail() -> None:
    """It was returned; what was given back because it was not its turn is counted by its reason."""
    tally = StreamTally("a", 100.0)
    tally.ended(101.0, None, Outcome(OutcomeKind.RETURNED, "the run was stopped before the job was done"))
    tally.ended(101.0, None, Outcome(OutcomeKind.RETURNED, "admission.wait: it waits", excused=True))
    assert tally.record(102.0).ended == {"returned": 1, "admission.wait": 1}
