"""More comes than can be answered: what is let in is answered in time, and the device does as much as it can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headrace.base.policies.batching import BatchingPolicy
from headrace.base.policies.expected_wait import ExpectedWait
from headrace.diagnose.simulator import Receivers, Station, System, Trace, simulate
from headrace.diagnose.simulator.entrance import ANSWERED, LATE, REFUSED
from headrace.diagnose.simulator.system import WAIT

_LARGEST, _LAUNCH, _EACH = 16, 2e-3, 0.2e-3
_BATCH_SECONDS = _LAUNCH + _EACH * _LARGEST
#: Jobs per second of the device in full batches.
_LIMIT = _LARGEST / _BATCH_SECONDS


def poisson(seed: int, rate: float, seconds: float, start: float = 0.0) -> list[float]:
    """Return the times of arrivals."""
    count = int(rate * seconds)
    return [start + float(time) for time in np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))]


def serve(
    arrivals: list[float],
    deadline: float,
    *,
    slower: Callable[[float], float] = lambda came: 1.0,
    fetching: tuple[int, float] | None = None,
    admission: bool = True,
    knows_curve: bool = True,
) -> Trace:
    """Simulate an emulated device that takes 2 ms + 0.2 ms for each item.

    Args:
        arrivals: When jobs come.
        deadline: Seconds that each has.
        slower: Factor of the device's time, by when the first job of the batch came.
        fetching: Workers and seconds of a stage before the device that waits on the outside.
        admission: Whether jobs may be turned away.
        knows_curve: Whether the device was measured before.
    """
    num = len(arrivals)
    before = [] if fetching is None else [
        Station(name="fetch", workers=fetching[0], capacity=64, programs=[((WAIT, fetching[1]),)] * num)
    ]  # fmt: skip
    device = Station(
        name="device",
        workers=1,
        capacity=64,
        programs=[()] * num,
        batching=BatchingPolicy(max_size=_LARGEST),
        batch_program=lambda size, first: ((WAIT, (_LAUNCH + _EACH * size) * slower(arrivals[first])),),
    )
    known = (_BATCH_SECONDS / _LARGEST, _LAUNCH + _EACH) if knows_curve else ()
    policy = ExpectedWait(_LARGEST, *known) if admission else None
    return simulate(
        System(
            stations=[*before, device],
            num_jobs=num,
            receivers=Receivers(jobs_per_call=64),
            arrivals=arrivals,
            deadline_seconds=deadline,
            admission=policy,
        )
    )


def share_late(trace: Trace, deadline: float) -> float:
    """Return the share of what was let in that was not answered in time."""
    let_in = trace.outcome != REFUSED
    return float(np.mean((trace.outcome == LATE)[let_in] | ((trace.done - trace.received)[let_in] > deadline)))


@pytest.mark.parametrize("deadline", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("load", [0.5, 1.0, 2.0, 3.0])
def test_what_is_let_in_is_answered_in_time(load: float, deadline: float) -> None:
    """Of Poisson arrivals at half to three times the limit 99 % are in time, and the device loses nothing by it."""
    trace = serve(poisson(1, load * _LIMIT, 2), deadline)
    assert share_late(trace, deadline) <= 0.01
    if load > 1:
        assert trace.goodput(deadline) >= 0.95 * _LIMIT
    elif load < 1:
        assert np.all(trace.outcome == ANSWERED)


def test_without_admission_nearly_all_is_late() -> None:
    """The device works on what came longest ago, which is late when it is done: the reason for all this."""
    trace = serve(poisson(1, 2 * _LIMIT, 2), 0.1, admission=False)
    assert trace.goodput(0.1) < 0.2 * _LIMIT


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_wrong_cost_curve_is_corrected(factor: float) -> None:
    """A device three times slower or faster than it was measured is used as much as it can be, at three times its rate."""
    trace = serve(poisson(2, 3 * _LIMIT / factor, 2), 0.1, slower=lambda came: factor)
    assert share_late(trace, 0.1) <= 0.01
    assert trace.goodput(0.1) >= 0.95 * _LIMIT / factor


def test_what_was_never_measured_is_learned() -> None:
    """Without a cost curve it is the same."""
    trace = serve(poisson(3, 2 * _LIMIT, 2), 0.1, knows_curve=False)
    assert share_late(trace, 0.1) <= 0.01
    assert trace.goodput(0.1) >= 0.95 * _LIMIT


def test_a_device_that_becomes_slower_refuses_more() -> None:
    """For two seconds it takes twice as long: what is late is what was inside by then, at both ends."""
    trace = serve(poisson(4, 2 * _LIMIT, 6), 0.1, slower=lambda came: 2.0 if 2 < came < 4 else 1.0)
    inside = 0.1 * _LIMIT
    assert share_late(trace, 0.1) * np.sum(trace.outcome != REFUSED) <= 3 * inside
    assert trace.goodput(0.1) >= 0.95 * _LIMIT * (4 + 2 / 2) / 6


@pytest.mark.parametrize("deadline", [0.03, 0.3])
def test_bursts_are_let_in_as_far_as_they_can_be_answered(deadline: float) -> None:
    """Bursts of four times the limit, with quiet seconds between: the device is busy while they last."""
    arrivals: list[float] = []
    for turn in range(4):
        arrivals += poisson(turn, 0.3 * _LIMIT, 1.0, 1.3 * turn) + poisson(turn, 4 * _LIMIT, 0.3, 1.3 * turn + 1)
    trace = serve(sorted(arrivals), deadline)
    assert share_late(trace, deadline) <= 0.01
    assert np.sum(trace.latencies <= deadline) >= 0.9 * _LIMIT * 4 * (0.3 * 1.0 + 0.3)


def test_a_device_that_hangs_is_used_again() -> None:
    """While it hangs nothing piles up that nobody wants, and what comes later is answered."""
    trace = serve(poisson(5, 0.9 * _LIMIT, 5), 0.1, slower=lambda came: 60.0 if 2 < came < 2.001 else 1.0)
    later = trace.received > 2 + 3 * 60 * _BATCH_SECONDS
    assert np.sum(later) > 1000
    assert np.mean((trace.outcome == ANSWERED)[later]) >= 0.99
    assert np.sum(trace.outcome == LATE) <= 0.1 * _LIMIT + 64


def test_what_waits_on_the_outside_is_no_queue() -> None:
    """Downloads of 200 ms with hundreds under way are let in, though as many in a queue could not be answered in time."""
    trace = serve(poisson(6, 0.9 * _LIMIT, 2), 0.25, fetching=(1000, 0.2))
    assert np.mean(trace.outcome == ANSWERED) >= 0.99
    assert share_late(trace, 0.25) <= 0.01


@pytest.mark.parametrize("load", [2.0, 3.0])
def test_a_device_of_uneven_speed_is_kept_busy(load: float) -> None:
    """Calls differ by 8 % on an average and one of fifty takes three times as long: few are late, and batches are full."""
    random = np.random.default_rng(7)
    factors = iter(1 + np.abs(random.normal(0, 0.1, 10_000)) + 2 * (random.random(10_000) < 0.02))
    trace = serve(poisson(7, load * _LIMIT, 3), 0.05, slower=lambda came: float(next(factors)))
    assert trace.batch_mean["device"] >= 0.95 * _LARGEST
    assert share_late(trace, 0.05) <= 0.02
