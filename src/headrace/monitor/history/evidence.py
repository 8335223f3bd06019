"""A sequential test for a slowdown: after each window, how much speaks for one that began somewhere before.

How this works: for each size of slowdown that one would want to find, a window's e-value is the likelihood of what is left of
its score under that slowdown, over the likelihood under the largest that is still called none. The product of the e-values
since some window speaks for a slowdown that began there; the sum of these products over all windows so far is the evidence
(Shiryaev and Roberts). Without a slowdown the evidence grows by at most 1 per window on average. So the probability that it
ever reaches `limit` within n windows is at most n / limit, however often one looks, and whatever began when.

The likelihoods are those of Student's t, with the degrees of freedom of the baseline or fewer. What one window may say is
capped, which leaves the bound as it is: one odd window, however odd, is not enough evidence.

References:
    A. N. Shiryaev, 1963; S. W. Roberts, 1966; M. Pollak, "Optimal detection of a change in distribution", Annals of Statistics
    13, 1985; J. Shin, A. Ramdas, A. Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.compare.recorded import DRIFT
from headrace.monitor.history.baseline import Scores, Series
from headrace.runs.formats.history import ALL_STAGES

#: Slowdowns up to this share count as none, and what may lie beyond it because the level or the run is not known well.
MARGIN = 0.01
#: The same for all stages together without a yardstick, where the machine's speed is in it: it moves by about that much.
MACHINE_DRIFT = DRIFT
#: {size of slowdown that is looked for: its weight}; what lies between them is found, too.
SLOWDOWNS = {0.05: 0.2, 0.10: 0.5, 0.20: 0.2, 0.50: 0.1}
#: Probability of a false alarm within `WEEK` windows, of all series together.
FALSE_ALARMS, WEEK = 0.15, 168
_MOST_FREEDOM = 40
#: The evidence is kept from growing beyond so many times the limit, so that it goes down again soon after a recovery.
_MOST_EVIDENCE = 100.0
#: A window says at most the limit to this power: two are needed.
_MOST_OF_ONE = 0.6


def find_limit(num_series: int) -> float:
    """Return the evidence at which a slowdown is called one, if so many series are watched."""
    return num_series * WEEK / FALSE_ALARMS


@dataclass(frozen=True, slots=True)
class Finding:
    """What a series of windows says."""

    evidence: tuple[float, ...]
    """After each window; not beyond 100 times the limit."""
    began: int | None
    """Number of the window, from the first of all, with which the slowdown began that the evidence speaks for most; None if no
    window can be compared."""
    ratio: float | None
    """CPU time over the expected, of the windows since then, or of the newest ones where nothing speaks for a slowdown."""
    low: float | None
    """95 % interval."""
    high: float | None


def weigh(series: Series, scores: Scores, runs: Sequence[str], start: int, limit: float) -> Finding:
    """Return the evidence of the windows from one on.

    Args:
        series: What is expected.
        scores: Of all windows in order, the baseline's included.
        runs: Of each window.
        start: Number of the first window that is compared.
        limit: See `find_limit`.
    """
    steps = _as_steps(series, scores, runs)[start:]
    total, most = [0.0] * len(SLOWDOWNS), limit**_MOST_OF_ONE
    strongest, best = [0.0] * len(SLOWDOWNS), [0] * len(SLOWDOWNS)
    history: list[float] = []
    began: int | None = None
    for step in steps:
        if step is not None:
            for number, slowdown in enumerate(SLOWDOWNS):
                fresh = min(most, step.weigh(math.log1p(slowdown), is_new=True))
                going_on = min(most, step.weigh(math.log1p(slowdown), is_new=False))
                total[number] = min(total[number] * going_on + fresh, _MOST_EVIDENCE * limit)
                if fresh >= strongest[number] * going_on:
                    best[number] = step.number
                strongest[number] = min(max(fresh, strongest[number] * going_on), _MOST_EVIDENCE * limit)
            began = best[int(np.argmax(np.multiply(total, list(SLOWDOWNS.values()))))]
        history.append(float(np.dot(total, list(SLOWDOWNS.values()))))
    known = [step for step in steps if step is not None]
    if began is None or not known:
        return Finding(tuple(history), None, None, None, None)
    if history[-1] < limit:
        recent = known[-_RECENT:]
        return Finding(tuple(history), began, *_estimate(series, recent, recent[0].number))
    return Finding(tuple(history), began, *_estimate(series, known, began))


#: Windows that the estimate is made from where nothing speaks for a slowdown: a day of hours.
_RECENT = 24


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    """Of the window."""
    value: float
    """Of its score what the window before does not explain."""
    deviation: float
    follows: float
    """How much of a slowdown that began before is in the value; the rest was expected of the window before."""
    freedom: int
    least: float
    """Logarithm of the largest slowdown that is called none."""

    def weigh(self, slowdown: float, *, is_new: bool) -> float:
        """Return the e-value of a slowdown that began with this window, or before it."""
        part = 1.0 if is_new else self.follows
        least = self.least * part
        if slowdown <= self.least:
            return 0.0
        return math.exp(self._log_likelihood(slowdown * part) - self._log_likelihood(least))

    def _log_likelihood(self, centre: float) -> float:
        away = (self.value - centre) / self.deviation
        return -(self.freedom + 1) / 2 * math.log1p(away * away / self.freedom)


def _as_steps(series: Series, scores: Scores, runs: Sequence[str]) -> list[_Step | None]:
    left = series.residuals(scores)
    residuals, extra = left.values, left.variances
    steps: list[_Step | None] = []
    freedom = min(_MOST_FREEDOM, series.freedom)
    for number, value in enumerate(residuals):
        margin = MACHINE_DRIFT if series.name == ALL_STAGES and not series.follows else MARGIN
        least = math.log1p(margin) + series.doubt(runs[number]) + float(left.doubts[number])
        follows = number > 0 and runs[number] == runs[number - 1] and not math.isnan(residuals[number - 1])
        if math.isnan(value):
            steps.append(None)
        elif follows:
            rest = float(value - series.correlation * residuals[number - 1])
            deviation = math.sqrt(series.next**2 + extra[number])
            steps.append(_Step(number, rest, deviation, 1 - series.correlation, freedom, least))
        else:
            deviation = math.sqrt(series.first**2 + extra[number])
            steps.append(_Step(number, float(value), deviation, 1.0, freedom, least))
    return steps


def _estimate(series: Series, steps: Sequence[_Step], began: int) -> tuple[float, float, float]:
    """Return the ratio and its interval from the steps since a window, by least squares."""
    weights = numerator = 0.0
    for step in steps:
        if step.number >= began:
            part = 1.0 if step.number == began and began > steps[0].number else step.follows
            weights += (part / step.deviation) ** 2
            numerator += part * step.value / step.deviation**2
    # The level that it is compared with is not known for sure either.
    mean = numerator / weights
    half = _t95(series.freedom) * math.sqrt(1 / weights + series.level_error**2)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _t95(freedom: int) -> float:
    """Return the two-sided 95 % point of Student's t (Cornish and Fisher's expansion)."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
