"""How fast items get done, told from a counter."""

from __future__ import annotations

import pytest

from headrace.base.policies.throughput import Throughput


def read(per_second: float, seconds: float, horizon: float, *, first_at: float = 0.0) -> Throughput:
    """Return what reads a steady rate every 50 ms, from 0 to so many seconds."""
    throughput = Throughput(horizon)
    for tick in range(round(seconds / 0.05) + 1):
        now = tick * 0.05
        throughput.read(1000 + now, int(max(0.0, now - first_at) * per_second + 1e-9), True)
    return throughput


@pytest.mark.parametrize("per_second", [0.1, 0.25, 1.0, 28.0, 5_000.0])
def test_slow_and_fast_are_told_alike(per_second: float) -> None:
    """One in ten seconds is 0.1/s, not 0 in most seconds and 1 in some."""
    assert read(per_second, 40.0, 30.0).estimate_rate() == pytest.approx(per_second, rel=0.15)


def test_nothing_done_says_nothing_for_a_while() -> None:
    """Before anything is done no rate is known; when nothing was for as long as it looks back, the rate is 0."""
    assert read(0.1, 9.0, 30.0).estimate_rate() is None
    assert read(0.0, 31.0, 30.0).estimate_rate() == 0.0


def test_the_first_item_tells_a_rate() -> None:
    """A rate is known with the first item, and is certain with some more."""
    one = read(0.1, 10.5, 30.0)
    assert one.estimate_rate() == pytest.approx(0.1, rel=0.1)
    assert not one.is_settled()
    assert read(0.1, 30.5, 100.0).is_settled()


def test_time_without_work_does_not_count() -> None:
    """An hour in which nothing came does not make the pipeline slower than it is."""
    throughput = read(10.0, 20.0, 30.0)
    throughput.read(1020.05 + 3600, 200, False)
    for tick in range(40):
        throughput.read(4621 + tick * 0.05, 200 + tick // 2, True)
    assert throughput.estimate_rate() == pytest.approx(10.0, rel=0.2)


def test_a_rate_that_changes_is_followed() -> None:
    """From 1,000/s to one in 5 s: within the horizon the old rate is forgotten."""
    throughput = read(1000.0, 5.0, 30.0)
    for tick in range(1, 1200):
        now = 5.0 + tick * 0.05
        throughput.read(1000 + now, 5000 + int((now - 5.0) / 5), True)
    assert throughput.estimate_rate() == pytest.approx(0.2, rel=0.2)


def test_memory_is_bounded() -> None:
    """Twelve hours of looking back keep some hundred readings."""
    assert len(read(1.0, 500.0, 43_200.0)._readings) <= 300
