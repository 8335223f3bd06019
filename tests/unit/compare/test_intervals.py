"""Intervals against tables, brute force and closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headrace.compare.intervals import (
    FEWEST_PAIRS,
    _critical_rank,
    centre,
    paired_interval,
    unpaired_interval,
    usual_spread,
)


@pytest.mark.parametrize(
    ("n", "table"), [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52), (30, 137)]
)
def test_critical_ranks_are_those_of_the_tables(n: int, table: int) -> None:
    """The published two-sided 5 % values of Wilcoxon's signed-rank test are the largest that are significant."""
    assert _critical_rank(n, 0.05) == table + 1


def test_too_few_pairs_have_no_interval() -> None:
    """Five pairs cannot reach 95 %: 2 of 32 outcomes are as sure as can be."""
    assert paired_interval([0.1, 0.2, 0.3, 0.4, 0.5]) is None
    assert paired_interval([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) is not None
    assert FEWEST_PAIRS == 6


def _p_value(differences: np.ndarray, shift: float) -> float:
    """Return the signed-rank test's two-sided p-value by trying all signs."""
    centred = differences - shift
    ranks = np.argsort(np.argsort(np.abs(centred))) + 1
    seen = ranks[centred > 0].sum()
    sums = [sum(r for r, sign in zip(ranks, signs, strict=True) if sign) for signs in _signs(len(ranks))]
    return 2 * min(np.mean([s <= seen for s in sums]), np.mean([s >= seen for s in sums]))


def _signs(n: int) -> list[tuple[int, ...]]:
    return list(itertools.product((0, 1), repeat=n))


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_what_the_exact_test_does_not_reject(seed: int) -> None:
    """Just inside its ends the brute-force test keeps the shift, just outside it rejects it."""
    differences = np.random.default_rng(seed).normal(0.03, 0.05, 8)
    interval = paired_interval(list(differences))
    assert interval is not None
    tiny = 1e-9
    assert _p_value(differences, interval.low + tiny) > 0.05
    assert _p_value(differences, interval.low - tiny) <= 0.05
    assert _p_value(differences, interval.high - tiny) > 0.05
    assert _p_value(differences, interval.high + tiny) <= 0.05


def test_the_centre_is_the_median_of_means_of_two() -> None:
    """Of 1, 2 and 9 the means of two are 1, 1.5, 2, 5, 5.5, 9."""
    assert centre([9, 1, 2]) == pytest.approx(3.5)


def test_one_slow_block_hardly_moves_the_estimate() -> None:
    """A block ten times slower shifts a mean by a tenth of its size, and the estimate by less than the spread."""
    calm = [0.01, -0.02, 0.0, 0.02, -0.01, 0.015, -0.005, 0.005, -0.015, 0.01]
    assert abs(centre([*calm[:-1], -2.3]) - centre(calm)) < 0.01


def test_unpaired_interval_of_independent_values_is_the_textbook_one() -> None:
    """For many independent values the bootstrap's width is 2 x 1.96 x sqrt(s^2/n + s^2/n) of the log means."""
    random = np.random.default_rng(3)
    a, b = random.normal(100, 5, 400), random.normal(110, 5, 400)
    interval = unpaired_interval(a, b, seed=1)
    expected = 1.96 * math.sqrt((a.std() / a.mean()) ** 2 / 400 + (b.std() / b.mean()) ** 2 / 400)
    assert interval.mid == pytest.approx(math.log(b.mean() / a.mean()))
    assert (interval.high - interval.low) / 2 == pytest.approx(expected, rel=0.15)


def test_unpaired_interval_covers_the_truth_when_neighbours_are_alike() -> None:
    """Of 200 pairs of series with correlation 0.5 between neighbours, the interval misses the true ratio at most 24 times."""
    random = np.random.default_rng(5)
    missed = 0
    for seed in range(200):
        a, b = (_correlated(random, 50, 0.5) for _ in "ab")
        interval = unpaired_interval(100 * np.exp(0.05 * a), 107 * np.exp(0.05 * b), seed=seed)
        missed += not interval.low <= math.log(1.07) <= interval.high
    assert missed <= 24


def _correlated(random: np.random.Generator, n: int, correlation: float) -> np.ndarray:
    values = random.normal(size=n)
    for index in range(1, n):
        values[index] = correlation * values[index - 1] + math.sqrt(1 - correlation**2) * values[index]
    return values


def test_the_same_seed_gives_the_same_interval() -> None:
    """The bootstrap draws nothing but from its seed."""
    a, b = [1.0, 1.1, 0.9, 1.05] * 5, [1.2, 1.3, 1.1, 1.25] * 5
    assert unpaired_interval(a, b, seed=7) == unpaired_interval(a, b, seed=7)
    assert unpaired_interval(a, b, seed=7) != unpaired_interval(a, b, seed=8)


def test_the_usual_spread_is_that_of_normal_noise() -> None:
    """One slow block of eight is none; without values there is none."""
    assert usual_spread([10, 10, 10, 10, 10, 10, 10, 2]) == 0
    assert usual_spread([8, 9, 10, 11, 12]) == pytest.approx(1.4826)
    assert usual_spread([]) == 0
