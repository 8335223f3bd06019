"""The sequential test: what it promises when nothing happens."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.monitor.history.baseline import Scores, fit_series
from headrace.monitor.history.evidence import FALSE_ALARMS, WEEK, find_limit, weigh


@pytest.mark.full
@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_false_alarms_are_as_rare_as_promised(tails: str) -> None:
    """Of 200 quiet weeks after a baseline of 48 windows, no more than the promised share and its chance raise an alarm."""
    random = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        shape = (48 + WEEK, 3)
        noise = random.normal(0, 0.02, shape) if tails == "normal" else 0.015 * random.standard_t(4, shape)
        values = noise + random.normal(0, 0.05, (len(noise), 1))
        scores = Scores(("a", "b", "c"), values, np.zeros(shape), ("",) * len(noise), np.full(len(noise), np.nan))
        runs = [f"run {at // 24}" for at in range(len(noise))]
        series = fit_series(scores, runs, 48)
        limit = find_limit(len(series))
        alarms += any(max(weigh(one, scores, runs, 48, limit).evidence) >= limit for one in series)
    assert alarms <= 200 * FALSE_ALARMS + 2 * np.sqrt(200 * FALSE_ALARMS)


def test_evidence_grows_with_a_slowdown_and_fades_without() -> None:
    """It is almost nothing while nothing happens, and passes the limit with a slowdown, which the ratio then tells."""
    random = np.random.default_rng(1)
    values = random.normal(0, 0.01, (80, 2)) + random.normal(0, 0.05, (80, 1))
    values[75:, 0] += np.log(1.2)
    scores = Scores(("a", "b"), values, np.zeros((80, 2)), ("",) * 80, np.full(80, np.nan))
    series = next(one for one in fit_series(scores, ["run"] * 80, 60) if one.name == "a")
    found = weigh(series, scores, ["run"] * 80, 60, find_limit(3))
    assert max(found.evidence[:15]) < 10
    assert found.evidence[-1] > find_limit(3)
    assert found.began == 75
    assert found.ratio == pytest.approx(1.2, rel=0.05)
