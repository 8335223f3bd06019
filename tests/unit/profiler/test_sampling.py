"""The limit on recorded spans."""

from __future__ import annotations

import pytest

from headrace.profiler.sampling import RateLimit


def test_all_is_recorded_below_the_limit() -> None:
    """A rate at the limit changes nothing."""
    limit = RateLimit(5_000, 0)
    assert limit.tell(5_000, 1) == 1
    assert [change.every for change in limit.changes] == [1]


@pytest.mark.parametrize(("rate", "every"), [(5_001, 2), (20_000, 4), (20_001, 8), (60_000, 16), (1e6, 256)])
def test_above_it_the_smallest_power_of_two_is_taken(rate: float, every: int) -> None:
    """As many jobs are left out as needed, and at once."""
    assert RateLimit(5_000, 0).tell(rate, 1) == every


def test_it_does_not_flutter() -> None:
    """A rate that goes down a little keeps the decision; one that falls below a quarter of the limit takes it back."""
    limit = RateLimit(5_000, 0)
    assert [limit.tell(rate, 1) for rate in (6_000, 4_000, 2_600, 2_400, 600)] == [2, 2, 2, 1, 1]


def test_each_change_is_noted_with_its_moment() -> None:
    """The changes say from when on one job in how many was recorded."""
    limit = RateLimit(5_000, 100)
    limit.tell(6_000, 200)
    limit.tell(6_000, 300)
    limit.tell(100, 400)
    assert [(change.at_ns, change.every) for change in limit.changes] == [(100, 1), (200, 2), (400, 1)]


def test_an_absurd_rate_ends() -> None:
    """The search for a power of two ends, whatever it is told."""
    assert RateLimit(1, 0).tell(float("inf"), 1) == 1 << 16


def test_far_above_the_limit_nobody_waits_for_the_next_second() -> None:
    """At 60,000 spans a second the decision comes after a third of a second; it counts what is recorded, not what passes."""
    limit = RateLimit(5_000, 0)
    assert [limit.is_far_above(passages) for passages in (6_000, 20_000, 20_001)] == [False, False, True]
    limit.tell(60_000, 1)
    assert not limit.is_far_above(60_000)
