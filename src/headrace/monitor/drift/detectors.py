"""Compares windows with a baseline, one after the other: each statistic of all strata together, and of each stratum alone.

A window's mean is taken as the distance of each stratum from its own usual mean, averaged; so a camera that is silent, or twice
as busy, moves nothing. Strata that the baseline does not know are left out, and counted.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from headrace.monitor.drift.evidence import (
    DETECTORS,
    MOST_BEYOND,
    MULTIPLES,
    REFUSED_MULTIPLES,
    add_evidence,
    evidence_of_count,
    evidence_of_scores,
    limit_of,
    limits_of,
)
from headrace.monitor.drift.statistics import STRATUM_WEIGHT, family_weights, statistic_of
from headrace.monitor.drift.strata import tabulate
from headrace.runs.formats.drift import DriftBaseline, DriftWindow, MeanReference, RateReference

#: Windows of which means are kept, for charts and for the size of a shift.
MOST_KEPT = 400
#: Standard errors by which a rate that was learnt may be off; from so many cases on, by one less.
_ERRORS, _MANY_CASES = 2.0, 100


class MeanDetector:
    """The means of one statistic.

    Attributes:
        strata: Judged alone; their columns follow that of all together.
        evidence: (`DETECTORS`, all together and each stratum), logarithms.
        limit: Of the evidence.
        since: Number of the window after which it began.
        moved: The last windows: how far the mean was from the usual one, by column; NaN where there was none.
        usual_sd: The same windows: the long-run standard deviation of the first column, as the window was composed.
    """

    def __init__(self, reference: MeanReference, strata: list[str], weight: float, weight_alone: float) -> None:
        self.reference = reference
        self.strata = strata
        columns = 1 + len(strata)
        self.evidence = np.zeros((len(DETECTORS), columns))
        # Without weight: kept to explain, and never an alarm.
        self.limit = np.stack([limits_of(weight), *[limits_of(weight_alone)] * len(strata)], axis=1)
        self.since = np.zeros(self.evidence.shape, int)
        self.moved: deque[np.ndarray] = deque(maxlen=MOST_KEPT)
        self.usual_sd: deque[float] = deque(maxlen=MOST_KEPT)
        known = list(reference.strata)
        self._known = known
        self._places = [known.index(name) for name in strata]
        self._usual = np.array([reference.strata[name].mean for name in known])
        self._spread = np.array([reference.strata[name].spread for name in known])

    def add(self, number: int, window: DriftWindow, name: str) -> None:
        """Judge a window: the `number`th, from 1."""
        table = tabulate([window], name, self._known)
        n, distance = table.n[0], table.means[0] - self._usual
        reference = self.reference
        floor = (1e-4 * reference.sd) ** 2
        variance = np.maximum(reference.wander_sd**2 + reference.within_sd**2 / np.maximum(n, 1), floor)
        weight = np.where(np.isfinite(distance), 1 / variance, 0)
        total = weight.sum()
        together = float((np.nan_to_num(distance) * weight).sum() / total) if total else math.nan
        sd = reference.spread / math.sqrt(total) if total else math.nan
        alone = (distance / (np.sqrt(variance) * self._spread))[self._places]
        scores = np.array([together / sd if total else math.nan, *alone])
        self.moved.append(np.array([together, *distance[self._places]]))
        self.usual_sd.append(sd)
        self.since = np.where(self.evidence <= 0, number - 1, self.since)
        self.evidence = add_evidence(self.evidence, evidence_of_scores(scores), self.limit + MOST_BEYOND)

    def mean_since(self, number: int, detector: int, column: int) -> float:
        """Return how far the mean was from the usual one since the evidence began, until the `number`th window."""
        windows = max(1, min(len(self.moved), number - int(self.since[detector, column])))
        values = [row[column] for row in list(self.moved)[-windows:]]
        return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


class RateDetector:
    """A share, of all strata together; of the stratum named if there is one.

    Args:
        name: Of the share.
        reference: What is usual.
        weight: Of the detector.
        stratum: Judged alone; None: all together.
        known_from: Cases from which its rate is known; of few, little is known.
    """

    def __init__(
        self, name: str, reference: RateReference, weight: float, stratum: str | None, known_from: float
    ) -> None:
        self.name = name
        self.reference = reference
        self.stratum = stratum
        self._strata = [stratum] if stratum is not None else list(reference.strata)
        rate = reference.rate if stratum is None else reference.strata[stratum]
        #: Above a half the other cases are counted, which are the rarer.
        self.is_turned = rate > 0.5
        self.multiples = REFUSED_MULTIPLES if name == "refused" else MULTIPLES
        self.evidence = np.zeros(len(self.multiples))
        self.limit = limit_of(weight * np.array(list(self.multiples.values())))
        self.since = np.zeros(len(self.multiples), int)
        self.counted: deque[tuple[float, float, float]] = deque(maxlen=MOST_KEPT)
        """(cases, cases usual, of how many) of the last windows."""
        # The rate may be off by this much, in the same direction in every window.
        error = (_ERRORS - (known_from >= _MANY_CASES)) / math.sqrt(known_from + 1)
        self._cautious = [1 + error if multiple > 1 else max(0.05, 1 - error) for multiple in self.multiples]

    def add(self, number: int, window: DriftWindow) -> None:
        """Judge a window: the `number`th, from 1."""
        cases = usual = bases = 0.0
        for name in self._strata:
            part = window.strata.get(name)
            if part is not None:
                base = part.counts.get(self.reference.of, 0)
                bases += base
                cases += part.counts.get(self.name, 0)
                usual += base * self.reference.strata[name]
        self.counted.append((cases, usual, bases))
        if self.is_turned:
            cases, usual = bases - cases, bases - usual
        usual = max(usual, 1e-6 * bases)
        more = [
            evidence_of_count(cases, caution * usual, self.reference.burstiness, multiple) if bases else 0.0
            for caution, multiple in zip(self._cautious, self.multiples, strict=True)
        ]
        self.since = np.where(self.evidence <= 0, number - 1, self.since)
        self.evidence = add_evidence(self.evidence, np.array(more), self.limit + MOST_BEYOND)

    def rates_since(self, number: int, place: int) -> tuple[float, float]:
        """Return the usual share and the one since the evidence began, until the `number`th window."""
        windows = max(1, min(len(self.counted), number - int(self.since[place])))
        if not self.counted:
            return self.reference.rate, self.reference.rate
        cases, usual, bases = np.sum(list(self.counted)[-windows:], axis=0)
        return (float(usual / bases), float(cases / bases)) if bases else (0.0, 0.0)


@dataclass
class Detectors:
    """All of them."""

    baseline: DriftBaseline
    number: int = 0
    """Windows so far."""
    windows: deque[DriftWindow] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    means: dict[str, MeanDetector] = field(init=False)
    rates: list[RateDetector] = field(init=False)

    def __post_init__(self) -> None:
        """Share out the weights."""
        baseline = self.baseline
        weights = family_weights([*baseline.means, *baseline.rates])
        judged = [name for name in baseline.means if statistic_of(name) is not None]
        alone = {name: list(one.strata) if len(baseline.strata) > 1 else [] for name, one in baseline.means.items()}
        bad = list(baseline.rates["refused"].strata) if "refused" in baseline.rates and len(baseline.strata) > 1 else []
        each = STRATUM_WEIGHT / max(1, len(bad) + sum(len(alone[name]) for name in judged))
        self.means = {
            name: MeanDetector(one, alone[name], weights.get(name, 0.0), each if name in judged else 0.0)
            for name, one in baseline.means.items()
        }
        self.rates = [
            RateDetector(name, one, weights[name], None, one.known_from) for name, one in baseline.rates.items()
        ]
        for stratum in bad:
            refused = baseline.rates["refused"]
            known_from = refused.strata[stratum] * baseline.strata[stratum].items
            self.rates.append(RateDetector("refused", refused, each, stratum, known_from))

    def add(self, window: DriftWindow) -> None:
        """Judge the next window."""
        self.number += 1
        self.windows.append(window)
        for name, one in self.means.items():
            one.add(self.number, window, name)
        for rate in self.rates:
            rate.add(self.number, window)

    def is_alarm(self) -> bool:
        """Return whether the evidence of any is at its limit."""
        return any((one.evidence >= one.limit).any() for one in self.means.values()) or any(
            (rate.evidence >= rate.limit).any() for rate in self.rates
        )
