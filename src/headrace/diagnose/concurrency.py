"""Whether calls to the outside take longer the more of them are under way, as far as the recorded run shows it.

A service that is limited in rate, or a link that is full, answers 32 callers no faster than 8: each waits four times as long. A
run whose workers were busy all the time had 8 calls under way all the time, and shows neither that nor the contrary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array

#: Calls, and how many times as many under way in busy as in quiet moments (90th over 10th percentile), to say anything.
_FEWEST_CALLS, _LEAST_VARIED = 60, 2.0
#: Or so many of them with at most half as many under way as usual: the first ones, before all workers had something to ask.
_FEWEST_EARLY = 10
#: Calls that are under way together share their luck: the standard error is so many times that of independent ones.
_CLUSTERED = 2.0
_NINE_IN_TEN = 1.645
#: Power from which on calls stand in line, rather than slow one another down.
_IN_LINE = 0.6


@dataclass(frozen=True, slots=True)
class Growth:
    """The power of the calls under way with which a call's time grows: 0, not at all; 1, as they do."""

    low: float
    mid: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether the run tells one end from the other."""
        return self.high - self.low < 0.5

    @property
    def is_in_line(self) -> bool:
        """Whether calls were seen to take nearly as many times as long as there were before them: they stand in line."""
        return self.is_known and self.low >= _IN_LINE


#: What a run says in which the number of calls hardly changed.
UNKNOWN = Growth(0.0, 0.0, 1.0)
#: What a run says whose answers came at a pace that the other side set.
LIMITED = Growth(0.8, 1.0, 1.0)

#: Spread of the time between two answers over its mean: of callers that know nothing of one another it is about 1.
_EVEN = 0.5
#: A call with at most half as many before it as usual over a usual one, at most; and how many of these it takes to tell.
_QUICKER, _FEWEST_QUICK = 0.7, 3
#: Calls under way from which on even answers are no accident.
_FEWEST_UNDER_WAY = 3
#: The same where calls are far more unequal than that: answers are taken up late, too.
QUITE_EVEN = 0.75
#: Spread of the calls' times over their mean from which on they are unequal; and over the spread between answers.
UNEQUAL, _FAR_MORE_UNEQUAL = 0.5, 2.0
#: Of the calls by their time: those that had nobody before them.
_ALONE_PERCENT = 1
#: Share of the most calls under way that there were on average: no caller was idle for long.
_OCCUPIED = 0.85


@dataclass(frozen=True, slots=True)
class Turns:
    """What a call needs of somebody who serves one at a time."""

    seconds: float
    """Until the next one can be served."""
    apart: float = 0.0
    """More that a call takes, however many are under way."""
    with_work: bool = False
    """The caller's own work goes on meanwhile: what is written before is read while it computes."""


def find_turns(evidence: Evidence, stage: str) -> Turns:
    """Return the pace of the answers that a stage got while as many calls as usual were under way; of one that is `LIMITED`."""
    started, ended = (times / 1e9 for times in find_calls(evidence, stage))
    ends = np.sort(ended)
    under_way = np.searchsorted(np.sort(started), ends[:-1], "left") - np.arange(1, len(ends))
    gaps = np.diff(ends)[under_way >= max(1.0, float(np.median(under_way)) / 2)]
    each = float(gaps.mean()) if len(gaps) else 0.0
    return Turns(each, max(0.0, float(np.percentile(ended - started, _ALONE_PERCENT)) - each))


def fit_growth(evidence: Evidence, stage: str) -> Growth:
    """Return how a stage's calls grow with those of it that were under way as they began; `UNKNOWN` if that hardly varied."""
    started, ended = find_calls(evidence, stage)
    if len(started) < _FEWEST_CALLS:
        return UNKNOWN
    under_way = count_under_way(started, ended)
    if _is_paced(started, ended, under_way) or is_rationed(started, ended):
        return LIMITED
    few, many = np.percentile(under_way, [10, 90])
    early = int((under_way <= float(np.median(under_way)) / _LEAST_VARIED).sum())
    if many < _LEAST_VARIED * few and early < _FEWEST_EARLY:
        return UNKNOWN
    slope, error = _fit_line(np.log(under_way), np.log((ended - started) / 1e9))
    reach = _NINE_IN_TEN * _CLUSTERED * error
    low, mid, high = (min(1.0, max(0.0, value)) for value in (slope - reach, slope, slope + reach))
    return Growth(low, mid, high)


def find_calls(evidence: Evidence, stage: str) -> tuple[Array, Array]:
    """Return when a stage's calls that succeeded began and ended, ns; of a run in which spans were left out, until then.

    Those under way cannot be counted where not every call has a span.
    """
    spans, rows = evidence.spans, evidence.stage_rows(stage)
    good = spans.is_ok[rows] & (spans.ended[rows] > spans.started[rows])
    if evidence.is_sampled:
        good &= spans.ended[rows] < spans.started[spans.weight > 1].min()
    return spans.started[rows][good], spans.ended[rows][good]


def count_under_way(started: Array, ended: Array) -> Array:
    """Return for each call how many were under way when it had begun, itself among them; (calls,) int."""
    order = np.lexsort((ended, started))  # of those that began together, who is answered first
    counts = np.empty(len(started), np.int64)
    begun = started[order]
    counts[order] = np.arange(1, len(started) + 1) - np.searchsorted(np.sort(ended), begun, side="right")
    return np.maximum(counts, 1)


def _is_paced(started: Array, ended: Array, under_way: Array) -> bool:
    """Return whether answers come at even steps, and came the sooner the fewer were asked before: a limit in rate."""
    usual = float(np.median(under_way))
    quick = under_way <= (usual + 1) / 2
    if usual < _FEWEST_UNDER_WAY or quick.sum() < _FEWEST_QUICK:
        return False
    gaps = np.diff(np.sort(ended[under_way >= usual]))
    seconds = ended - started
    is_even = len(gaps) > 0 and gaps.std() <= _EVEN * gaps.mean()
    return bool(is_even and np.median(seconds[quick]) <= _QUICKER * np.median(seconds[~quick]))


def is_rationed(started: Array, ended: Array) -> bool:
    """Return whether answers come at even steps though calls take unequal times: the other side gives out so many a second.

    Who is refused and asks again, or is not served in turn, waits long or not at all, by luck; only who gives the answers can
    make them even. Callers that know nothing of one another and whose calls are unequal get theirs at random moments; what
    comes before or after a stage spaces its beginnings, not its ends.

    Args:
        started: When each call began, any unit.
        ended: When each was answered, the same unit.
    """
    under_way = count_under_way(started, ended)
    most, span = int(under_way.max()), float(ended.max() - started.min())
    seconds = ended - started
    if len(started) < _FEWEST_CALLS or most < _FEWEST_UNDER_WAY or span <= 0:
        return False
    if float(seconds.sum()) < _OCCUPIED * most * span:
        return False
    # The first callers were let in together, and the last ones left alone.
    ends = np.sort(ended)[most : len(ended) - most]
    gaps, unequal = np.diff(ends), float(seconds.std() / seconds.mean())
    if len(gaps) < _FEWEST_CALLS // 2 or gaps.mean() <= 0:
        return False
    between = float(gaps.std() / gaps.mean())
    return between <= QUITE_EVEN and unequal >= max(UNEQUAL, _FAR_MORE_UNEQUAL * between)


def _fit_line(x: Array, y: Array) -> tuple[float, float]:
    """Return the slope of the least-squares line and its standard error."""
    x, y = x - x.mean(), y - y.mean()
    total = float(x @ x)
    slope = float(x @ y) / total
    left = y - slope * x
    return slope, math.sqrt(float(left @ left) / max(1, len(x) - 2) / total)
