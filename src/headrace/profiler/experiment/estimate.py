"""From stretches to answers: paired ratios, sensitivities, and whether they are decided. No clock, no threads.

How this works: each perturbed stretch is compared with the mean of the two unperturbed ones around it, on the scale of
logarithms, so that a drift of the machine falls on both sides. The interval is Student's on these ratios, with the level shared
by the looks (`_LOOK_ALPHA`): there are too few pairs for ranks at the first looks, and one more pair costs seconds. How far
ratios usually scatter is a matter of the machine, so it is taken from all perturbations together, or from the one itself where
that scatters more.

The sensitivity to a resource is (1 / ratio - 1) / amount: the share of the added demand by which the time per finished item
grew. It is 1 where the resource is the limit and 0 where it has room, and the threshold between them is half.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.runs.formats.experiment import Interval

#: Pairs before the first look, and after which no more are made.
FEWEST_PAIRS, MOST_PAIRS = 3, 16
#: By how much each look may err, so that a handful of them together err by 5 %.
_LOOK_ALPHA = 0.02
THRESHOLD = 0.5
#: A change of the throughput from which a ratio alone counts, where there is no sensitivity.
WORTH = 0.05


@dataclass(frozen=True, slots=True)
class Scatter:
    """How far the logarithms of ratios usually are from their mean."""

    deviation: float
    freedom: int
    """Degrees of freedom of the estimate; 0: nothing is known."""


def scatter_of(groups: Iterable[Sequence[float]]) -> Scatter:
    """Return how far ratios scatter around the mean of their group, pooled.

    Args:
        groups: Logarithms of ratios, those of one perturbation together.
    """
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in several)
    return Scatter(math.sqrt(squares / freedom) if freedom else 0.0, freedom)


def interval_of(log_ratios: Sequence[float], usual: Scatter) -> Interval | None:
    """Return where the true ratio lies; None with fewer than `FEWEST_PAIRS` pairs."""
    n = len(log_ratios)
    if n < FEWEST_PAIRS:
        return None
    mid = statistics.fmean(log_ratios)
    deviation, freedom = max(usual.deviation, statistics.stdev(log_ratios)), max(usual.freedom, n - 1)
    half = _student(freedom) * deviation / math.sqrt(n)
    return Interval(low=math.exp(mid - half), mid=math.exp(mid), high=math.exp(mid + half))


def _student(freedom: int) -> float:
    """Return the two-sided point of Student's t at `_LOOK_ALPHA` (Cornish and Fisher's expansion)."""
    z = statistics.NormalDist().inv_cdf(1 - _LOOK_ALPHA / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def sensitivity_of(ratio: Interval, amount: float) -> Interval:
    """Return the sensitivity that a ratio of throughputs comes to.

    Args:
        ratio: With the perturbation over without it.
        amount: By how much more of the resource an item took; negative: there was more of it.
    """
    ends = sorted((1 / value - 1) / amount for value in (ratio.low, ratio.high))
    return Interval(low=ends[0], mid=(1 / ratio.mid - 1) / amount, high=ends[1])


def is_decided(ratio: Interval | None, amount: float | None) -> bool:
    """Return whether more pairs would not change the answer."""
    if ratio is None:
        return False
    if amount is not None:
        found = sensitivity_of(ratio, amount)
        return found.low > THRESHOLD or found.high < THRESHOLD
    is_change = ratio.low > 1 + WORTH / 2 or ratio.high < 1 - WORTH / 2
    is_none = ratio.low > 1 - WORTH and ratio.high < 1 + WORTH
    return is_change or is_none
