"""How far a simulated ratio may be off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.diagnose.prediction_interval import USUAL_ERROR, interval


def test_no_change_may_be_off_by_the_noise_of_a_measurement() -> None:
    """Simulations that agree exactly leave 2 %."""
    found = interval(1.0, [0.0] * 8, 0.0)
    assert found.high == pytest.approx(math.exp(0.02))
    assert found.low == pytest.approx(math.exp(-0.02))


def test_a_large_change_may_be_off_by_the_record_of_the_simulator() -> None:
    """From a quarter more on, all of the usual error counts."""
    assert interval(2.0, [0.0] * 8, 0.0).high / 2.0 == pytest.approx(math.exp(USUAL_ERROR))
    assert interval(2.0, [0.0] * 8, 0.0, error=0.3).high / 2.0 == pytest.approx(math.exp(0.3))


@pytest.mark.parametrize(("mid", "misfit"), [(1.0, 0.33), (1.0, -0.33), (2.0, 0.33)])
def test_an_interval_contains_the_misfit_of_the_replay(mid: float, misfit: float) -> None:
    """A replay that is a third off cannot be followed by 2 %, whatever the change."""
    found = interval(mid, [0.0] * 8, misfit)
    assert found.low <= mid / max(1 + misfit, 1 / (1 + misfit))
    assert found.high >= mid * max(1 + misfit, 1 / (1 + misfit))


def test_the_spread_of_simulations_covers_nine_in_ten() -> None:
    """A new draw of the same spread lies inside for nine in ten samples of twelve."""
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(2000):
        found = interval(1.0, (0.5 * rng.standard_normal(12)).tolist(), 0.0)
        inside += found.low <= 1.0 * math.exp(0.5 * rng.standard_normal()) <= found.high
    assert inside / 2000 == pytest.approx(0.9, abs=0.03)
