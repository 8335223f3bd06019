"""Evidence is fair: while nothing moves, an e-value is 1 on average."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.monitor.drift.evidence import (
    DEGREES,
    DETECTORS,
    LIMIT,
    REFUSED_MULTIPLES,
    SHIFTS,
    add_evidence,
    evidence_of_count,
    evidence_of_scores,
    limits_of,
)


def test_the_e_value_of_a_score_is_one_on_average() -> None:
    """Over Student's t, by numerical integration; over the normal distribution, whose tails are lighter, for small shifts."""
    scores = np.linspace(-400, 400, 800_001)
    step = scores[1] - scores[0]
    constant = math.gamma((DEGREES + 1) / 2) / math.sqrt(DEGREES * math.pi) / math.gamma(DEGREES / 2)
    density = constant * (1 + scores**2 / DEGREES) ** (-(DEGREES + 1) / 2)
    means = (np.exp(evidence_of_scores(scores)) * density).sum(axis=1) * step
    assert means == pytest.approx(np.ones(len(DETECTORS)), abs=1e-3)


@pytest.mark.parametrize("variation", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("multiple", list(REFUSED_MULTIPLES))
def test_the_e_value_of_a_count_is_one_on_average(variation: float, multiple: float) -> None:
    """Over the Poisson or the negative binomial distribution with the usual mean."""
    usual, total = 5.0, 0.0
    for count in range(600):
        if variation:
            shape = 1 / variation
            log = math.lgamma(count + shape) - math.lgamma(shape) - math.lgamma(count + 1)
            log += count * math.log(usual / (usual + shape)) + shape * math.log(shape / (usual + shape))
        else:
            log = count * math.log(usual) - usual - math.lgamma(count + 1)
        total += math.exp(log + evidence_of_count(count, usual, variation, multiple))
    assert total == pytest.approx(1.0, abs=1e-6)


def test_one_strange_window_is_never_an_alarm() -> None:
    """However far a window is off, its evidence stays below the limit of a statistic with all the weight."""
    most = evidence_of_scores(np.linspace(-1000, 1000, 20_001)).max()
    assert most < limits_of(1.0).min()
    assert limits_of(1.0).min() == pytest.approx(math.log(LIMIT / (max(SHIFTS.values()) / 2)))


def test_evidence_begins_again_from_nothing() -> None:
    """The sum forgets evidence against a shift, so that one that begins later is found as soon."""
    sums = np.zeros(1)
    for more in (-5.0, -5.0, 2.0):
        sums = add_evidence(sums, np.array([more]), np.inf)
    assert sums[0] == 2.0


def test_what_was_not_measured_is_no_evidence() -> None:
    """A window without values leaves all as it was."""
    assert not evidence_of_scores(np.array([np.nan])).any()
