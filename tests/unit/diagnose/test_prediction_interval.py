"""How far a simulated ratio may be off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.diagnose.prediction_interval import PRIOR, interval, times_as_wide
from headrace.runs.formats.prediction import KINDS, KindRecord, TrackRecord


def test_no_change_may_be_off_by_the_noise_of_a_measurement() -> None:
    """Simulations that agree exactly leave 2 % where nothing is changed, and more where something is."""
    found = interval(1.0, [0.0] * 8, 0.0, kinds=())
    assert found.high == pytest.approx(math.exp(0.02))
    assert found.low == pytest.approx(math.exp(-0.02))
    assert interval(1.0, [0.0] * 8, 0.0, kinds=("workers",)).high == pytest.approx(math.exp(PRIOR["workers"][0]))


def test_a_large_change_may_be_off_by_more() -> None:
    """From a quarter more on, all of what its kind was off by counts; of several kinds the worst."""
    assert interval(2.0, [0.0] * 8, 0.0, kinds=("batch", "workers")).high / 2.0 == pytest.approx(
        math.exp(PRIOR["workers"][1])
    )
    assert interval(0.5, [0.0] * 8, 0.0, kinds=("batch",)).low / 0.5 == pytest.approx(math.exp(-PRIOR["batch"][1]))


def test_every_kind_has_a_prior() -> None:
    """A new kind of change needs a figure of its own, with a source."""
    assert set(PRIOR) == set(KINDS)


def test_both_sides_of_a_measurement_have_the_noise_of_the_run() -> None:
    """A run whose rate is known to 10 % cannot be compared with another one to 2 %."""
    found = interval(1.0, [0.0] * 8, 0.0, kinds=(), noise=0.10)
    assert found.high >= math.exp(1.645 * math.sqrt(2) * 0.10)


def test_the_record_of_the_worst_kind_counts() -> None:
    """Kinds without a record leave the interval as it is by rule."""
    record = TrackRecord(num=9, by_kind={"batch": KindRecord(num=9, times=0.5), "cores": KindRecord(num=9, times=2.0)})
    assert times_as_wide(("cores", "batch"), record) == 2.0
    assert times_as_wide(("workers",), record) == 1.0
    wide, usual = (interval(2.0, [0.0] * 8, 0.0, times=times).high for times in (2.0, 1.0))
    assert math.log(wide / 2) == pytest.approx(2 * math.log(usual / 2))


def test_no_record_makes_an_interval_narrower_than_the_misfit() -> None:
    """However right others were: this run is off by a third."""
    assert interval(1.0, [0.0] * 8, 0.33, times=0.4).high >= 1.33


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
