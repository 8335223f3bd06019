"""Percentiles that refuse, and the operational laws."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.statistics import percentile, samples_needed, utilization, wilson_interval


def chance_of_at_most_one_above(percent: Fraction, n: int) -> Fraction:
    """The binomial distribution, exactly."""
    q = percent / 100
    return sum((math.comb(n, k) * q ** (n - k) * (1 - q) ** k for k in (0, 1)), Fraction(0))


@pytest.mark.parametrize(("percent", "needed"), [(99, 662), (90, 64), (50, 11)])
def test_samples_needed(percent: int, needed: int) -> None:
    """p99 needs 662 samples and p90 64, as MLPerf LoadGen's rule of early stopping asks, and p50 11."""
    assert samples_needed(percent) == needed


@pytest.mark.parametrize("percent", [50, 75, 90, 95, 99])
def test_samples_needed_is_the_smallest(percent: int) -> None:
    """With that many the chance of at most one above is under one percent, with one fewer it is not: LoadGen's odds()."""
    needed = samples_needed(percent)
    assert chance_of_at_most_one_above(Fraction(percent), needed) < Fraction(1, 100)
    assert chance_of_at_most_one_above(Fraction(percent), needed - 1) >= Fraction(1, 100)


@pytest.mark.parametrize("percent", [1, 5, 10, 25])
def test_low_percentiles_need_as_many_as_high_ones(percent: int) -> None:
    """The rule is symmetric: p1 is as rare as p99."""
    assert samples_needed(percent) == samples_needed(100 - percent)


@pytest.mark.parametrize("percent", [0, 100, -1, 101, math.nan])
def test_no_percentile_outside(percent: float) -> None:
    """0 and 100 are no percentiles of a distribution."""
    with pytest.raises(ValueError, match=f"between 0 and 100, got {percent}"):
        samples_needed(percent)


@given(st.lists(st.floats(0, 1e6), min_size=64, max_size=100), st.sampled_from([50.0, 75.0, 90.0]))
def test_percentile_is_that_of_numpy(samples: list[float], percent: float) -> None:
    """A percentile of raw samples, list or array, is NumPy's."""
    expected = float(np.percentile(samples, percent))
    assert percentile(samples, percent).value == expected
    assert percentile(np.array(samples), percent).value == expected


@pytest.mark.parametrize(("percent", "needed"), [(99, 662), (90, 64), (50, 11)])
def test_percentile_refuses_small_samples(percent: int, needed: int) -> None:
    """One sample too few, and there is no value, only what is missing."""
    few = percentile(range(needed - 1), percent)
    assert (few.value, few.num_samples, few.num_needed) == (None, needed - 1, needed)
    assert percentile(range(needed), percent).value is not None


def test_percentile_of_nothing() -> None:
    """No samples, no value, no error."""
    assert percentile([], 50).value is None


def test_utilization_law() -> None:
    """U = X S / m: 30 items/s of 0.1 s each on 4 workers."""
    assert utilization(busy_seconds=30 * 0.1 * 20, elapsed_seconds=20, num_workers=4) == pytest.approx(30 * 0.1 / 4)


@pytest.mark.parametrize(("elapsed", "workers"), [(0, 1), (-1, 1), (1, 0)])
def test_utilization_needs_time_and_workers(elapsed: float, workers: int) -> None:
    """No time or no workers is the caller's mistake."""
    with pytest.raises(ValueError, match="must be positive"):
        utilization(1, elapsed, workers)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_is_the_score_test_inverted(counts: tuple[int, int]) -> None:
    """At each end p0 of the interval the score test is just at its limit: (p - p0)^2 = z^2 p0 (1 - p0) / n."""
    successes, trials = counts
    p = successes / trials
    low, high = wilson_interval(successes, trials, z=1.96)
    assert 0 <= low <= p <= high <= 1
    for end in (low, high):
        assert (p - end) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / trials, abs=1e-12)


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_interval_needs_a_proportion(successes: int, trials: int) -> None:
    """What is no proportion is the caller's mistake."""
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        wilson_interval(successes, trials)
