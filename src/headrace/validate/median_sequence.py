"""Where the median of measurements lies that come one after the other, told so that one may look at any time.

An interval of fixed size is right once; who looks after every measurement and stops when he likes what he sees is wrong more
often than it says. This one holds at all looks together: it is the set of medians that no bettor has shown wrong.

How this works: a bettor against "the median is m or less" stakes on each measurement being larger than m, which is at most an
even chance. After k of n were larger, capital is the mean over several stakes s of (1 + s)^k (1 - s)^(n - k); that it ever
passes 2 / alpha has a probability of alpha / 2 at most. So there is a least k that refutes, whatever the numbers are, and the
interval goes from the k-th largest measurement to the k-th smallest. Nothing is assumed of the distribution, tails and spread
included; only that no measurement's chance of being above its median depends on those before it.

References:
    S. R. Howard, A. Ramdas, J. McAuliffe, J. Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences",
    Annals of Statistics 49, 2021 (intervals that hold at every look);
    S. R. Howard, A. Ramdas, "Sequential estimation of quantiles with applications to A/B testing", Bernoulli 28, 2022;
    I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024 (the bets).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.compare.intervals import ALPHA, Interval

#: From nearly everything to little: the best depends on how far the median is from m, which nobody knows beforehand.
_STAKES = np.array([0.99, 0.5, 0.25, 0.125, 0.0625])


def median_interval(values: Sequence[float], alpha: float = ALPHA) -> Interval | None:
    """Return the interval of the median, with a confidence of 1 - alpha at all looks together.

    Args:
        values: As they came; what came before does not tell on which side of the median the next one falls.
        alpha: Above 0 and below 1.

    Returns:
        None while there are too few for any interval (8 are enough for 95 %).
    """
    refuting = fewest_above(len(values), alpha)
    if refuting is None:
        return None
    ordered = np.sort(np.asarray(values, float))
    low, high = float(ordered[-refuting]), float(ordered[refuting - 1])
    return Interval(low, float(np.median(ordered)), high)


def fewest_above(num_values: int, alpha: float) -> int | None:
    """Return the least number of values above m that refutes "the median is m or less"; None if not even all of them do."""
    above = np.arange(num_values + 1)
    each = np.log1p(_STAKES)[:, None] * above + np.log1p(-_STAKES)[:, None] * (num_values - above)
    most = each.max(axis=0)
    capital = most + np.log(np.exp(each - most).mean(axis=0))
    refuting = np.flatnonzero(
        capital >= -math.log(alpha / 2)
    )  # it grows with each one above: from the least on, all refute
    return int(refuting[0]) if len(refuting) else None
