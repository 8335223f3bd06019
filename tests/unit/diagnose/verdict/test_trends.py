"""Trends against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.diagnose.verdict import trends


def test_growth_of_a_line() -> None:
    """A value that goes from 1 to 3 has 1.2 in its first fifth and 2.8 in its last, and its mean is 2."""
    values = np.linspace(1.0, 3.0, 1000)
    found = trends.growth(np.arange(1000), values)
    assert found is not None
    assert (found.early, found.late, found.mean) == pytest.approx((1.2, 2.8, 2.0), rel=1e-2)
    assert found.excess_share == pytest.approx(0.4, rel=1e-2)
    assert found.is_rise


def test_noise_is_no_rise() -> None:
    """In a hundred random series none is called a rise."""
    random = np.random.default_rng(5)
    found = [trends.growth(np.arange(300), random.lognormal(0, 0.5, 300)) for _ in range(100)]
    assert not any(one is not None and one.is_rise for one in found)


def test_growth_of_too_few_is_not_told() -> None:
    """Ten items have no trend."""
    assert trends.growth(np.arange(10), np.arange(10.0)) is None


def test_size_share_of_a_line() -> None:
    """Of a + b size, the share that grows with size is b times the mean size over the mean."""
    random = np.random.default_rng(5)
    size = random.uniform(1.0, 3.0, 2000)
    found = trends.size_share(2.0 + 3.0 * size + random.normal(0, 0.1, 2000), size)
    assert found == pytest.approx(3 * 2 / (2 + 3 * 2), abs=0.02)


def test_size_share_needs_sizes_that_differ() -> None:
    """Equal sizes tell nothing."""
    assert trends.size_share(np.random.default_rng(5).random(100), np.full(100, 7.0)) is None


def test_rates_over_time_add_up() -> None:
    """One item a second, each served for its whole second: every bin has its length in items."""
    started = np.arange(200.0)
    found = trends.rates_over_time(started, started + 1.0, np.ones(200))
    assert found is not None
    assert found == pytest.approx(np.full(len(found), 160 / len(found)))


def test_company_of_two_side_by_side() -> None:
    """Two services at the same time have two for company, one alone has one, half overlapped one and a half."""
    found = trends.company(np.array([0.0, 0.0, 5.0, 10.0, 10.5]), np.array([1.0, 1.0, 6.0, 11.0, 11.5]))
    assert found == pytest.approx([2.0, 2.0, 1.0, 1.5, 1.5])


def test_slow_share_counts_what_lies_beyond_the_median() -> None:
    """One of ten takes 11 where the others take 1: a tenth of the items, 10 of 20 seconds."""
    seconds = np.array([1.0] * 9 + [11.0])
    assert trends.slow_share(seconds, 4.0) == pytest.approx((0.1, 0.5))


def test_first_sights_of_known_cost() -> None:
    """Each of five kinds costs 10 at first and 1 for four times after: 45 of 70 in excess, ten times as long."""
    seconds = np.array(([10.0] + [1.0] * 4) * 5)
    found = trends.first_sights(np.arange(25), seconds, np.repeat(np.arange(5), 5))
    assert found is not None
    assert (found.num_kinds, found.share, found.times) == pytest.approx((5, 45 / 70, 10.0))


def test_kinds_that_never_come_again_are_held_against_what_is_expected() -> None:
    """Where every call is a first one, only the cost at warm-up can tell; without it nothing is told."""
    seconds = np.full(20, 10.0)
    assert trends.first_sights(np.arange(20), seconds, np.arange(20)) is None
    found = trends.first_sights(np.arange(20), seconds, np.arange(20), np.full(20, 2.0))
    assert found is not None
    assert found.share == pytest.approx(0.8)


def test_two_kinds_are_told_from_one() -> None:
    """One value in eight is sixty times as large; a bell curve of logarithms, however wide, is one kind."""
    random = np.random.default_rng(5)
    one = random.lognormal(0.0, 1.0, 400)
    two = random.lognormal(0.0, 0.2, 400)
    two[::8] *= 60
    kinds = trends.two_kinds(two)
    assert kinds is not None
    assert kinds.is_large.tolist() == [number % 8 == 0 for number in range(400)]
    assert kinds.explained > 0.9
    assert kinds.large / kinds.usual == pytest.approx(60, rel=0.2)
    alike = trends.two_kinds(one)
    assert alike is not None
    assert alike.explained < 0.75
    assert trends.two_kinds(np.ones(400)) is None
    assert trends.two_kinds(two[:10]) is None
