"""How far the true difference may lie from the one that was seen.

Paired blocks: the Hodges-Lehmann estimate with the exact interval of Wilcoxon's signed-rank test. The two of a pair are
exchangeable when nothing differs, so their log-ratios are then symmetric about 0 whatever the noise looks like, and that is all
that the interval assumes. Student's t, the percentile and BCa bootstraps of the median, the BCa bootstrap of the mean and the
studentized bootstrap of the trimmed mean were tried beside it, under normal, heavy-tailed, drifting, switching and
autocorrelated noise and with slow periods that hit single blocks: the bootstraps are too narrow on a dozen pairs or find
fewer true changes, and t is lost once single blocks are slow. `docs/guides/comparing.md` has the figures.

Recorded runs have no pairs: there the blocks of each run are drawn again in contiguous pieces, so that what lasts longer than a
block stays together.

References:
    F. Wilcoxon, 1945; J. L. Hodges and E. L. Lehmann, "Estimates of location based on rank tests", 1963.
    D. N. Politis and J. P. Romano, "A circular block-resampling procedure for stationary data", 1992.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

#: What an interval may miss the truth by: 95 % intervals.
ALPHA = 0.05

#: Below this no signed-rank interval at 95 % exists: the surest outcome of 5 pairs has probability 1/16.
FEWEST_PAIRS = 6

_RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and how far the truth may lie from it, on the scale of logarithms."""

    low: float
    mid: float
    high: float

    def negate(self) -> Interval:
        """Return the interval of the opposite."""
        return Interval(-self.high, -self.mid, -self.low)


def centre(differences: Sequence[float]) -> float:
    """Return the Hodges-Lehmann estimate: the median of the means of all two (and of each with itself).

    Args:
        differences: At least one.
    """
    return float(np.median(_walsh_averages(differences)))


def paired_interval(differences: Sequence[float], alpha: float = ALPHA) -> Interval | None:
    """Return where the centre of paired differences lies, with confidence of at least 1 - alpha.

    Args:
        differences: Independent, symmetric about their centre; any order.
        alpha: 0 < alpha < 1.

    Returns:
        None when there are too few differences for this confidence.
    """
    rank = _critical_rank(len(differences), alpha)
    if rank == 0:
        return None
    averages = np.sort(_walsh_averages(differences))
    return Interval(float(averages[rank - 1]), float(np.median(averages)), float(averages[-rank]))


def usual_spread(values: Sequence[float]) -> float:
    """Return how far values usually are from their median; of normal noise it is the standard deviation. 0 without any."""
    if not values:
        return 0.0
    distances = np.abs(np.asarray(values, dtype=float) - np.median(values))
    return 1.4826 * float(np.median(distances))


def _walsh_averages(differences: Sequence[float]) -> np.ndarray:
    values = np.asarray(differences, dtype=float)
    first, second = np.triu_indices(len(values))
    means: np.ndarray = (values[first] + values[second]) / 2
    return means


@functools.cache
def _critical_rank(n: int, alpha: float) -> int:
    """Return the largest r with P(signed-rank statistic of n < r) <= alpha / 2, exactly; 0 if there is none."""
    probability = np.zeros(n * (n + 1) // 2 + 1)
    probability[0] = 1.0
    for rank in range(1, n + 1):  # each rank is added or not, with probability 1/2
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[:-rank]
        probability = (probability + shifted) / 2
    return int(np.count_nonzero(np.cumsum(probability) <= alpha / 2))


def unpaired_interval(a: Sequence[float], b: Sequence[float], *, seed: int, alpha: float = ALPHA) -> Interval:
    """Return where the difference of the means of two series lies, log b - log a, by circular block bootstrap.

    Args:
        a: One positive value for each stretch of time, in order.
        b: The same of the other.
        seed: Of the resampling.
        alpha: 0 < alpha < 1.
    """
    random = np.random.default_rng(seed)
    drawn = np.log(_resampled_means(b, random)) - np.log(_resampled_means(a, random))
    low, high = (float(end) for end in np.quantile(drawn, [alpha / 2, 1 - alpha / 2]))
    mid = float(np.log(np.mean(b)) - np.log(np.mean(a)))
    wider = _correction(_num_pieces(len(a)), _num_pieces(len(b)), alpha)
    return Interval(mid + (low - mid) * wider, mid, mid + (high - mid) * wider)


def _correction(pieces_a: int, pieces_b: int, alpha: float) -> float:
    """Return by how much the bootstrap of so few pieces is too narrow."""
    fewest, freedom = min(pieces_a, pieces_b), max(1, pieces_a + pieces_b - 2)
    z = NormalDist().inv_cdf(1 - alpha / 2)
    # The variance of a resampled mean is too small by (n - 1) / n, and Student's quantile is wider than the normal one.
    return math.sqrt(fewest / max(1, fewest - 1)) * (1 + (z * z + 1) / (4 * freedom))


def _resampled_means(values: Sequence[float], random: np.random.Generator) -> np.ndarray:
    series = np.asarray(values, dtype=float)
    n, pieces = len(series), _num_pieces(len(series))
    length = -(-n // pieces)
    starts = random.integers(0, n, (_RESAMPLES, pieces))
    drawn = series[(starts[:, :, None] + np.arange(length)) % n].reshape(_RESAMPLES, -1)[:, :n]
    means: np.ndarray = drawn.mean(axis=1)
    return means


def _num_pieces(n: int) -> int:
    # Pieces of about twice the cube root: the usual rate, doubled because neighbours in a run are alike.
    return max(1, n // max(1, round(2 * float(np.cbrt(n)))))
