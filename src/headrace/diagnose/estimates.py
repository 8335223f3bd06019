"""Means, percentiles and intervals of samples that are weighted, sampled or correlated in time."""

from __future__ import annotations

import math

import numpy as np

from headrace.base.statistics import percentile, samples_needed
from headrace.diagnose.span_columns import Array
from headrace.runs.formats.profile import Distribution, Estimate, Quantile

PERCENTS = (50, 90, 99)
_BINS = 40
#: Batches into which a series is cut for the standard error of its mean; Schmeiser (1982): more than 30 gain nothing, fewer
#: than 10 lose much.
_BATCHES = 10
#: Values that each of those batches should have at least.
_PER_BATCH = 2
RESAMPLES = 2_000


def compute_weighted_mean(values: Array, weights: Array) -> float | None:
    """Return a mean; None of nothing."""
    total = float(weights.sum())
    return float(values @ weights) / total if total > 0 else None


def distribution(values: Array, weights: Array, *, histogram: bool = False) -> Distribution:
    """Return a sample in short.

    Args:
        values: float64, (samples,).
        weights: How many items each value stands for, > 0. They count in mean, percentiles and histogram, not in the number
            of samples that a percentile needs.
        histogram: Also count values in bins: of equal width, or of equal ratio where the values span more than a decade.
    """
    if not len(values):
        empty = tuple(Quantile(percent, None, samples_needed(percent)) for percent in PERCENTS)
        return Distribution(num_samples=0, mean=None, minimum=None, maximum=None, percentiles=empty)
    edges = _edges(values) if histogram else np.empty(0)
    counts = np.histogram(values, edges, weights=weights)[0] if histogram else np.empty(0)
    return Distribution(
        num_samples=len(values),
        mean=compute_weighted_mean(values, weights),
        minimum=float(values.min()),
        maximum=float(values.max()),
        percentiles=tuple(_quantile(values, weights, percent) for percent in PERCENTS),
        bin_edges=tuple(edges.tolist()),
        bin_counts=tuple(round(count) for count in counts.tolist()),
    )


def _quantile(values: Array, weights: Array, percent: float) -> Quantile:
    if weights.min() == weights.max():
        found = percentile(values, percent)
        return Quantile(percent, found.value, found.num_needed)
    needed = samples_needed(percent)
    if len(values) < needed:
        return Quantile(percent, None, needed)
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    index = np.searchsorted(below, percent / 100 * below[-1])
    return Quantile(percent, float(values[order[min(int(index), len(values) - 1)]]), needed)


def _edges(values: Array) -> Array:
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return np.array([low, low + max(abs(low), 1e-9) * 1e-3])
    if low > 0 and high / low > 10:
        edges = np.geomspace(low, high, _BINS + 1)
    else:
        edges = np.linspace(low, high, _BINS + 1)
    edges[0], edges[-1] = low, high  # rounding must not leave the extremes outside
    return edges


def standard_error(values: Array, weights: Array | None = None) -> float | None:
    """Return the standard error of the mean of a series that is correlated in time; None if it is too short.

    Args:
        values: In the order of time.
        weights: How long each stands.

    References:
        Batch means; B. Schmeiser, "Batch size effects in the analysis of simulation output", 1982.
    """
    if len(values) < _BATCHES * _PER_BATCH:
        return None
    weights = np.ones(len(values)) if weights is None else weights
    edges = np.linspace(0, len(values), _BATCHES + 1).astype(int)[:-1]
    sums, totals = np.add.reduceat(values * weights, edges), np.add.reduceat(weights, edges)
    means = sums[totals > 0] / totals[totals > 0]
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None


def bootstrap_mean(values: Array, seed: int = 0) -> Estimate:
    """Return the mean of independent values with its 95 % interval.

    The bootstrap-t interval: the plain percentile interval is too narrow for the ten or so values that there are.

    Args:
        values: float64, at least 2.
        seed: The same values give the same interval.

    References:
        B. Efron and R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 12.
    """
    count, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(count)
    if error == 0:
        return Estimate(mean, mean, mean)
    drawn = values[np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    usable = errors > error * 1e-6
    ratios = (drawn.mean(axis=1)[usable] - mean) / errors[usable]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Estimate(mean - float(high) * error, mean, mean - float(low) * error)
