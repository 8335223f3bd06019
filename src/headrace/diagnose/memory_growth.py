"""Whether memory grows with the items done: a leak shows as a slope that stays when chance is taken out.

How this works: the slope of resident memory over items done, after the warm-up, is the median of the slopes between pairs of
samples (one spike does not move it). Its interval comes from drawing the residuals again in blocks, because neighbours are
alike: a heap that grows and is collected in waves has a wide interval.

References:
    P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63, 1968.
    H. R. Kuensch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17, 1989.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.base.formatting import pluralize
from headrace.base.units import format_size
from headrace.diagnose.estimates import RESAMPLES
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.span_columns import Array
from headrace.diagnose.steady_state import Completions
from headrace.runs.formats.profile import Estimate, MemoryGrowth, Window

FEWEST_SAMPLES = 20
#: More samples are averaged to so many: the median of slopes is of all pairs.
_MOST_SAMPLES = 300
#: Growth over the whole window below this share of the memory in use is no concern.
_PRACTICAL = 0.01
#: A leak goes on: the second half must grow at this share of the whole's pace.
_SUSTAINED = 0.5


def memory_growth(evidence: Evidence, done: Completions, window: Window) -> MemoryGrowth | str:
    """Return how memory grew with the items done, or why that could not be told."""
    gauge = evidence.gauges.get("processes", "rss_bytes")
    if gauge is None:
        return "memory was not sampled" if evidence.profiling else evidence.why_no_profile
    part = gauge.between(window.from_seconds, window.to_seconds)
    if len(part.values) < FEWEST_SAMPLES:
        return (
            f"{pluralize(len(part.values), 'sample')} of memory after the warm-up, {FEWEST_SAMPLES} are needed; profile a "
            "longer run"
        )
    items = done.at(part.seconds)
    if items[-1] <= items[0]:
        return "no item was settled between the first and the last sample of memory"
    return growth(items, part.values)


def growth(items: Array, num_bytes: Array, seed: int = 0) -> MemoryGrowth:
    """Return the growth of memory with items.

    Args:
        items: float64, done so far at each sample, not falling, and more at the end than at the beginning.
        num_bytes: float64, resident at each sample.
        seed: Of the resampling.
    """
    items, num_bytes = _average(items), _average(num_bytes)
    slope = _median_slope(items, num_bytes)
    errors = _slope_errors(items, num_bytes, slope, seed)
    low, high = (slope + float(error) for error in np.percentile(errors, [2.5, 97.5]))
    done, used = float(items[-1] - items[0]), float(np.median(num_bytes))
    estimate = Estimate(low * 1000, slope * 1000, high * 1000)
    practical = _PRACTICAL * used
    half = len(items) // 2
    goes_on = _median_slope(items[half:], num_bytes[half:]) > _SUSTAINED * slope
    grew = f"{_sign(slope * 1000)} per 1,000 items (95 % interval {_sign(low * 1000)} to {_sign(high * 1000)})"
    if low > 0 and slope * done > practical and goes_on:
        reason = f"memory grew by {grew}, {slope * done / used:.0%} of what is in use over {done:,.0f} items: look for a leak"
        return MemoryGrowth(bytes_per_1000_items=estimate, verdict="growing", reason=reason)
    if low > 0 and slope * done > practical:
        reason = f"{grew} at first, hardly in the second half: caches and buffers that fill up look like this; profile longer"
        return MemoryGrowth(bytes_per_1000_items=estimate, verdict="unclear", reason=reason)
    if high * done <= practical:
        reason = f"{grew}; over {done:,.0f} items that is surely less than {_PRACTICAL:.0%} of what is in use"
        return MemoryGrowth(bytes_per_1000_items=estimate, verdict="flat", reason=reason)
    reason = f"{grew}: too uneven to tell over {done:,.0f} items; profile a longer run"
    return MemoryGrowth(bytes_per_1000_items=estimate, verdict="unclear", reason=reason)


def _average(values: Array) -> Array:
    if len(values) <= _MOST_SAMPLES:
        return values
    edges = np.linspace(0, len(values), _MOST_SAMPLES + 1).astype(int)
    return np.add.reduceat(values, edges[:-1]) / np.diff(edges)


def _median_slope(x: Array, y: Array) -> float:
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] - x[first]
    usable = apart > 0
    if not usable.any():
        return 0.0
    return float(np.median((y[second] - y[first])[usable] / apart[usable]))


def _slope_errors(x: Array, y: Array, slope: float, seed: int) -> Array:
    """Return by how much the slope would miss when the residuals come in another order, block by block."""
    residuals = y - slope * x
    residuals = residuals - residuals.mean()
    count = len(x)
    length = max(2, round(2 * math.sqrt(count)))
    num_blocks = -(-count // length)
    starts = np.random.default_rng(seed).integers(0, count - length + 1, (RESAMPLES, num_blocks))
    picked = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count]
    centred = x - x.mean()
    return np.asarray(residuals[picked] @ centred / (centred @ centred))


def _sign(num_bytes: float) -> str:
    return f"{'-' if num_bytes < 0 else '+'}{format_size(abs(num_bytes))}"
