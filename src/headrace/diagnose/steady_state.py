"""Where the warm-up ends and whether the rest is steady: found from the run itself, not guessed.

How this works: the run is cut into bins of equal time, with several completions each. MSER finds the bin after which the mean
is known best: dropping more bins makes the sample smaller, dropping fewer leaves the transient in. It looks at two series,
completions per bin and mean latency per bin, because a pipeline whose queues fill up is steady in one long before the other;
the later of the two counts, at most half of the run. Then the first half of what is left is held against the second: a
difference above `DRIFT` that is also more than `_SIGNIFICANT` standard errors is drift.

References:
    K. P. White Jr., "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997
    (MSER; MSER-5 averages five observations, here a bin has at least five).
    K. Hoad, S. Robinson, R. Davies, "Automating warm-up length estimation", 2010: MSER did best of 44 methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.diagnose.estimates import standard_error
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import Window

#: A difference of means below this is of no practical importance; the checks allow as much.
DRIFT = 0.05
_SIGNIFICANT = 3.0
#: A rise, as a share of the first half, from which on its size says nothing.
_MANIFOLD = 9.0
_FEWEST_BINS = 20
#: A first job that was alone for so large a share of the run warmed the pipeline up, if at least so many jobs ran in all: jobs
#: that run one after the other each take less.
_FIRST_SHARE, _FEWEST_JOBS = 0.1, 20
_MOST_BINS = 200
#: Completions that a bin should have, and batches where items are completed by the batch.
_PER_BIN = 5
_BATCHES_PER_BIN = 2
#: MSER looks at half of the run; a minimum at the end of that half is none (White).
_LONGEST = 0.45


@dataclass(frozen=True, slots=True)
class Completions:
    """How many jobs were settled up to each moment."""

    seconds: Array
    """float64, since the run's first arrival, growing."""
    count: Array
    """float64, cumulative, at that moment."""
    batch: int
    """Jobs that may be settled together."""
    is_sampled: bool
    """The moments are those of a sampler; else each is that of a completion."""

    def at(self, seconds: Array) -> Array:
        """Return the count at given moments."""
        if self.is_sampled:
            return np.asarray(np.interp(seconds, self.seconds, self.count, left=0.0))
        index = np.searchsorted(self.seconds, seconds, "right")
        return np.asarray(np.concatenate([[0.0], self.count])[index])

    @property
    def total(self) -> float:
        """All that was settled."""
        return float(self.count[-1]) if len(self.count) else 0.0

    @property
    def last_seconds(self) -> float:
        """When the last was settled; 0 if none was."""
        if not len(self.count):
            return 0.0
        return float(self.seconds[int(np.searchsorted(self.count, self.count[-1]))])

    def rate(self, first: float, last: float) -> float | None:
        """Return completions per second of a steady stretch that ends with an outcome; None if there are too few to tell.

        Counted from just after its first completion; where batches are completed, from the end of one batch.
        """
        low, high = np.searchsorted(self.seconds, first, "left"), np.searchsorted(self.seconds, last, "right")
        seconds, count = self.seconds[low:high], self.count[low:high]
        begun = np.flatnonzero(count > 0)
        if len(begun) < 2:
            return None
        start = int(begun[0])
        if not self.is_sampled and self.batch > 1:
            gaps = np.diff(seconds[start : start + self.batch + 1])
            start += int(np.argmax(gaps))
        width = last - float(seconds[start])
        done = float(count[-1] - count[start])
        return done / width if width > 0 and done >= self.batch else None

    def relative_error(self, first: float, last: float) -> float:
        """Return the standard error of the rate between two moments as a share of it; 0 if there are too few to tell.

        References:
            Batch means; see `estimates.standard_error`.
        """
        num_bins = min(
            _MOST_BINS, int((self.at(np.array([last])) - self.at(np.array([first])))[0] // max(_PER_BIN, self.batch))
        )
        if num_bins < _FEWEST_BINS:
            return 0.0
        rates = np.diff(self.at(np.linspace(first, last, num_bins + 1)))
        error, mean = standard_error(rates), float(rates.mean())
        return error / mean if error is not None and mean > 0 else 0.0


def completions(evidence: Evidence, *, delivered: bool = False) -> Completions:
    """Return what is best known of completions: each one, where all have spans; else the sampled counter; else the sample.

    Args:
        evidence: The run.
        delivered: Only of jobs that were delivered: that is throughput. Else of all that were settled, however.
    """
    gauge = evidence.gauges.get("run", "delivered" if delivered else "settled")
    batch = evidence.largest_batch
    if evidence.is_complete or gauge is None or not _is_counted(evidence):
        jobs = evidence.jobs
        shown = jobs.is_delivered if delivered else np.ones(len(jobs), bool)
        return Completions(jobs.ended[shown] / 1e9, np.cumsum(jobs.weight[shown]), batch, False)
    return Completions(gauge.seconds, np.maximum.accumulate(gauge.values), batch, True)


def _is_counted(evidence: Evidence) -> bool:
    settled = evidence.gauges.get("run", "settled")
    return settled is not None and settled.values.max(initial=0) > 0


def find_window(done: Completions, evidence: Evidence) -> Window:
    """Return the steady part of a run."""
    jobs = evidence.jobs
    end = done.last_seconds
    per_bin = max(_PER_BIN, _BATCHES_PER_BIN * done.batch)
    num_bins = min(_MOST_BINS, int(done.total // per_bin))
    if done.is_sampled:
        num_bins = min(num_bins, len(done.seconds) // 2)
    if num_bins < _FEWEST_BINS or end <= 0:
        return _too_short(done, evidence, per_bin * _FEWEST_BINS)
    edges = np.linspace(0.0, end, num_bins + 1)
    rates = np.diff(done.at(edges)) / np.diff(edges)
    latencies = _mean_by_bin(edges, jobs.ended / 1e9, jobs.latency_seconds(), jobs.weight)
    cut = warm_up_bins(rates)
    if latencies is not None:
        cut = max(cut, warm_up_bins(latencies))
    begin = float(edges[cut])
    judged = [("throughput", *_drift(rates[cut:]))]
    if latencies is not None:
        judged.append(("latency", *_drift(latencies[cut:])))
    is_steady, says = _judge(judged, end - begin)
    if cut:
        says = f"the first {begin:.3g} s are warm-up and set apart (MSER); {says}"
    return Window(from_seconds=begin, to_seconds=end, warm_up_seconds=begin, is_steady=is_steady, says=says)


def warm_up_bins(series: Array) -> int:
    """Return how many bins to set apart: those that MSER finds, if they are a warm-up.

    They are none where their mean is that of the rest (a neighbour made the beginning noisier), nor where nearly half of the
    run would go: then the run changes all the time, or once in the middle, and the test for drift says so.
    """
    cut = truncation(series)
    if not cut or cut >= _LONGEST * len(series):
        return 0
    rest = float(series[cut:].mean())
    return cut if abs(float(series[:cut].mean()) - rest) > DRIFT * abs(rest) else 0


def truncation(series: Array) -> int:
    """Return how many values at the beginning of a series are warm-up, at most half of them: MSER.

    The number d that makes the squared standard error of the mean of the rest least, sum((y - mean)^2) / (n - d)^2.
    """
    count = len(series)
    left = np.arange(count, 0, -1)
    squares = np.cumsum((series - series.mean())[::-1] ** 2)[::-1]
    centred = np.cumsum((series - series.mean())[::-1])[::-1]
    spread = np.maximum(squares - centred**2 / left, 0.0)
    return int(np.argmin((spread / left.astype(float) ** 2)[: count // 2 + 1]))


def _mean_by_bin(edges: Array, seconds: Array, values: Array, weights: Array) -> Array | None:
    """Return the mean in each bin, an empty one's like the one's before it; None if half of them are empty."""
    which = np.clip(np.searchsorted(edges, seconds, "left") - 1, 0, len(edges) - 2)
    total = np.bincount(which, weights, len(edges) - 1)
    filled = np.flatnonzero(total > 0)
    if len(filled) < (len(edges) - 1) / 2:
        return None
    means = np.bincount(which, weights * values, len(edges) - 1)[filled] / total[filled]
    before = np.clip(np.searchsorted(filled, np.arange(len(edges) - 1), "right") - 1, 0, None)
    return np.asarray(means[before])


def _drift(series: Array) -> tuple[float, float]:
    """Return by which share of the mean the second half of a series lies above the first, and that difference's error."""
    half = len(series) // 2
    first, second = series[:half], series[-half:]
    mean = float(series.mean())
    errors = [standard_error(part) for part in (first, second)]
    if mean <= 0:
        return 0.0, math.inf
    known = [error for error in errors if error is not None]
    if len(known) < 2:  # too few bins for batches: take them as independent
        known = [float(part.std(ddof=1) / math.sqrt(half)) if half > 1 else math.inf for part in (first, second)]
    return float(second.mean() - first.mean()) / mean, math.hypot(*known) / mean


def _of_first_half(drift: float) -> float:
    """Return a difference of halves as a share of the first, from one as a share of the mean of both."""
    return (1 + drift / 2) / max(1 - drift / 2, 1e-9) - 1


def _describe_drift(drift: float) -> str:
    """Return a drift in words; where the first half has next to nothing, no share of it says anything."""
    share = _of_first_half(drift)
    if share >= _MANIFOLD:
        return "rose more than tenfold"
    return f"{'rose' if drift > 0 else 'fell'} by {abs(share):.0%}"


def _judge(judged: list[tuple[str, float, float]], seconds: float) -> tuple[bool | None, str]:
    drifting = [
        f"{name} {_describe_drift(drift)}"
        for name, drift, error in judged
        if abs(drift) > DRIFT and abs(drift) > _SIGNIFICANT * error
    ]
    if drifting:
        return False, f"from the first to the second half of the rest {' and '.join(drifting)}: not steady"
    _, drift, error = judged[0]
    if abs(drift) > DRIFT:
        needed = seconds * (_SIGNIFICANT * error / DRIFT) ** 2
        return None, (
            f"the two halves differ in throughput by {drift:+z.0%}, but the run is too uneven to call that drift "
            f"(standard error {error:.0%}); a run of about {needed:.0f} s would tell"
        )
    halves = ", ".join(f"{name} by {drift:+z.1%}" for name, drift, _ in judged)
    return True, f"steady: the two halves differ in {halves}"


def _too_short(done: Completions, evidence: Evidence, needed: int) -> Window:
    end = done.last_seconds or evidence.elapsed_seconds
    found = f"{done.total:,.0f} jobs were settled"
    if done.is_sampled and done.total >= needed:
        found, needed_text = f"{len(done.seconds)} samples of the counters were taken", f"{2 * _FEWEST_BINS}"
    else:
        needed_text = f"{needed:,}"
    if done.batch > 1 and not done.is_sampled:
        needed_text += f" (in batches of up to {done.batch})"
    alone = _seconds_of_first_alone(evidence)
    apart = f"the first job went ahead alone, and its {alone:.3g} s are set apart" if alone else "nothing was set apart"
    return Window(
        from_seconds=alone,
        to_seconds=end,
        warm_up_seconds=alone,
        is_steady=None,
        says=f"too short to find a warm-up or a drift: {found}, {needed_text} would be enough; {apart}",
    )


def _seconds_of_first_alone(evidence: Evidence) -> float:
    """Return for how long the first job was alone while the pipeline warmed up; 0 if it was not, or that took no large part.

    Only while nothing else was worked on: what piles up behind a warm-up is done faster afterwards than any steady run would.
    """
    jobs, spans = evidence.jobs, evidence.spans
    if len(jobs) < _FEWEST_JOBS or not evidence.is_complete:
        return 0.0
    is_of_first = (spans.root == jobs.root[0]) & (spans.attempt == jobs.attempt[0])
    # What was received and waits has not begun: pipelines without a queue between their stages receive before they work.
    second = int(spans.dequeued[~is_of_first].min())
    is_alone = second >= jobs.ended[0]
    return second / 1e9 if is_alone and second >= _FIRST_SHARE * float(jobs.ended.max()) else 0.0
