"""Percentiles of raw samples that refuse what the sample cannot support, and the operational laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Confidence asked of a sample before a percentile is quoted from it; see `samples_needed`.
CONFIDENCE = 0.99


def samples_needed(percentile: float) -> int:
    """Return the smallest sample in which this percentile may be quoted.

    With this many, the confidence that at least two samples lie above the true percentile is `CONFIDENCE`: the estimate is
    then bracketed. p99 needs 662, p90 64, p50 11.

    Args:
        percentile: In percent, 0 < percentile < 100.

    Raises:
        ValueError: If percentile is outside (0, 100).

    References:
        MLPerf LoadGen's early-stopping rule at 99 % confidence, one query over the limit allowed.
    """
    if not 0 < percentile < 100:
        raise ValueError(f"percentile must lie between 0 and 100, got {percentile}")
    below = max(percentile, 100 - percentile) / 100
    n = 2
    # P(at most one of n lies above) = q^n + n q^(n-1) (1-q)
    while below**n + n * below ** (n - 1) * (1 - below) > 1 - CONFIDENCE:
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile of a sample, or what is missing to quote it."""

    percentile: float
    """In percent."""
    value: float | None
    """In the sample's unit; None when the sample is too small."""
    num_samples: int
    """Samples at hand."""
    num_needed: int
    """Samples needed to quote it."""


def percentile(samples: Sequence[float] | np.ndarray, percent: float) -> Percentile:
    """Return a percentile of raw samples, without a value when the sample cannot support it.

    Args:
        samples: Raw values, any order.
        percent: In percent, 0 < percent < 100.
    """
    needed = samples_needed(percent)
    count = len(samples)
    value = float(np.percentile(np.asarray(samples), percent)) if count >= needed else None
    return Percentile(percent, value, count, needed)


def utilization(busy_seconds: float, elapsed_seconds: float, num_workers: int) -> float:
    """Return the fraction of available worker time spent in service.

    Args:
        busy_seconds: Service time summed over workers, in seconds.
        elapsed_seconds: Wall time of the same window, in seconds, > 0.
        num_workers: Workers able to serve, >= 1.

    Returns:
        Ratio, normally 0 to 1; above 1 the windows differ.

    Raises:
        ValueError: If elapsed_seconds or num_workers is not positive.

    References:
        Utilization law, U = X S / m; Denning and Buzen, 1978.
    """
    if elapsed_seconds <= 0 or num_workers <= 0:
        raise ValueError(f"elapsed_seconds and num_workers must be positive, got {elapsed_seconds} and {num_workers}")
    return busy_seconds / (elapsed_seconds * num_workers)


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion.

    Args:
        successes: 0 to trials.
        trials: >= 1.
        z: Normal quantile; 1.96 for 95 %.

    References:
        E. B. Wilson, 1927; recommended for small samples by Brown, Cai and DasGupta, 2001.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"expected 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    p, z2 = successes / trials, z * z
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    # The proportion itself always lies within; rounding would leave 0 of 11 just outside.
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))
