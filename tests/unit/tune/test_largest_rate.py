"""The largest share of full load at which a goal holds, against the closed form of M/M/1."""

from __future__ import annotations

import math

import pytest

from headrace.tune.largest_rate import LEAST, TOLERANCE, largest_share


def mm1_p99(share: float) -> float:
    """Return p99 of the time in an M/M/1 system whose service takes 1 s on average."""
    return math.log(100) / (1 - share) if share < 1 else math.inf


@pytest.mark.parametrize("limit", [6.0, 10.0, 15.0])
def test_mm1_is_found_within_the_tolerance(limit: float) -> None:
    """Time in an M/M/1 system is exponential with rate mu - lambda, so p99 holds up to lambda = mu - ln(100) / limit."""
    held = largest_share(mm1_p99, limit, 0.8)
    exact = 1 - math.log(100) / limit
    assert held.share is not None
    assert exact - TOLERANCE <= held.share <= exact
    assert held.seconds <= limit
    assert held.broken_seconds is not None
    assert held.broken_seconds > limit


def test_a_lax_goal_leaves_the_headroom_as_the_limit() -> None:
    """Where the goal holds at all that may be asked for, nothing is searched: one look is enough."""
    looks: list[float] = []

    def latency(share: float) -> float:
        looks.append(share)
        return mm1_p99(share)

    held = largest_share(latency, 1000.0, 0.8)
    assert (held.share, held.broken_share) == (0.8, None)
    assert looks == [0.8]


def test_a_goal_below_the_service_holds_at_no_rate() -> None:
    """p99 of the service alone is 4.6 s: a goal of 4 s cannot be held, and the least that was seen is told."""
    held = largest_share(mm1_p99, 4.0, 0.8)
    assert held.share is None
    assert held.seconds == pytest.approx(mm1_p99(LEAST))


def test_a_latency_that_falls_before_it_grows_is_no_refusal() -> None:
    """A device that waits for company is slowest when few jobs come: the goal may hold at a middle rate only."""
    held = largest_share(lambda share: mm1_p99(share) + max(0.0, 20 * (0.3 - share)), 10.0, 0.8)
    assert held.share == pytest.approx(1 - math.log(100) / 10, abs=TOLERANCE)
