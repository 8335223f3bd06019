"""An interval of the median that may be looked at after every measurement."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.validate.median_sequence import fewest_above, median_interval

ROUNDS, LOOKS = 400, 200


def test_a_few_measurements_give_no_interval() -> None:
    """Eight on one side are the least that tell anything."""
    assert median_interval([1.0] * 7) is None
    assert median_interval([1.0] * 8) is not None


@pytest.mark.parametrize("heavy", [False, True])
def test_looking_after_every_measurement_misses_seldom(heavy: bool) -> None:
    """In at most 5 % of the series the true median is outside at any of 200 looks, whatever the tails are like."""
    random = np.random.default_rng(3)
    series = random.standard_cauchy((ROUNDS, LOOKS)) if heavy else random.standard_normal((ROUNDS, LOOKS))
    above = (series > 0).cumsum(axis=1)
    least = [fewest_above(n, 0.05) or n + 1 for n in range(1, LOOKS + 1)]
    counts = np.arange(1, LOOKS + 1)
    missed = ((above >= least) | (counts - above >= least)).any(axis=1)
    assert missed.mean() <= 0.05


def test_it_narrows_down_to_the_median() -> None:
    """Twice as fast, with noise of 10 %: after 2,000 measurements within a few percent."""
    values = np.log(2.0) + 0.1 * np.random.default_rng(4).standard_normal(2000)
    found = median_interval(values.tolist())
    assert found is not None
    assert found.low < np.log(2.0) < found.high
    assert found.high - found.low < 0.05


def test_outliers_do_not_move_it() -> None:
    """A tenth of the calls took a hundred times as long: the others decide."""
    values = [0.7] * 90 + [-4.0] * 10
    found = median_interval(values)
    assert found is not None
    assert (found.low, found.mid, found.high) == (0.7, 0.7, 0.7)
