"""Whether a candidate is no worse than the incumbent by more than a margin, told as early as the data allow.

Both answer the same items; what counts is the difference on each, so that hard items cancel. One looks after every item, and
the error rates hold all the same: a bettor bets against "the candidate is worse by the margin or more". If that is so, the
bettor's capital passes 20 times its start with a probability of 5 % at most, whenever one looks (Ville). A second bettor bets
against "it is within the margin". The first whose capital passes 1 / alpha has shown its hypothesis wrong. Until then nothing
is known, and a candidate of which nothing is known is not accepted.

How this works: capital after items d1, d2, ... in [-1, 1] is the product of 1 + stake * (d + margin). The best stake depends on
how often the two differ, which nobody knows beforehand, so the capital is spread over several, a factor of two apart. Where it
is known how many items there will be, more than half of it is staked by how often the two differed until then, so that it just
suffices for the smallest difference that so many items can show: that needs fewer of them.

References:
    I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024 (the bets, and those
    for a known number of items: its predictable plug-in);
    J. Ville, "Etude critique de la notion de collectif", 1939 (the bound that holds at every look);
    S. Wellek, "Testing Statistical Hypotheses of Equivalence and Noninferiority", 2010 (what a margin is).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from headrace.base.settings import check
from headrace.runs.formats.outcomes import Decided

#: Stakes as shares of the largest that cannot lose everything at once.
_BETS = np.array([0.99, 0.5, 0.25, 0.125, 0.0625])
#: Share of the capital that is staked for the number of items that there will be, and the most that is staked so.
_PLANNED, _MOST_PLANNED = 0.6, 0.9
#: What is taken for the mean square of the differences before there are any: that of scores about which nothing is known.
_NO_ITEMS = 0.25
#: For items planned: how often an equal one is found to be equal.
_POWER = 0.8
#: Steps in which an end of the interval is narrowed down: to a ten-thousandth of a point.
_HALVINGS = 21
#: Sizes, 5 % apart, of which the first that would decide is told: up to ten thousand times as many items.
_SIZES = 190

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFinding:
    """What a test came to."""

    outcome: Decided
    num_items: int
    """That were looked at."""
    decided_after: int | None
    """Items after which it was known; None: it is not."""
    drop: float
    """Mean of incumbent less candidate; negative: the candidate is better."""
    low: float
    """Of the interval of the drop, which holds after any number of items."""
    high: float
    discordance: float
    """Share of the items on which they differ."""
    more_items: int | None
    """About how many more would decide it, if they are like these; None: it is decided, or no number would."""


def judge_drop(
    differences: Sequence[float] | Array, margin: float, alpha: float = 0.05, *, is_all: bool = False
) -> DropFinding:
    """Return whether the candidate's drop is below the margin.

    Args:
        differences: (items,) candidate's score less the incumbent's, each in [-1, 1]; their order has nothing to do with them.
        margin: Largest drop that is acceptable, above 0 and below 1.
        alpha: Probability of a wrong decision, at most, for each of the two.
        is_all: Whether these are all that there will ever be, as of a golden set. Of items that go on coming, as from traffic,
            nobody may say so: who looks again with more would have staked otherwise.

    Raises:
        SettingsError: If the margin or alpha is not possible.
        ValueError: If a difference is not within [-1, 1].
    """
    check(0 < margin < 1, "margin", margin, "above 0 and below 1")
    check(0 < alpha < 0.5, "alpha", alpha, "above 0 and below 0.5")
    values = np.asarray(differences, float)
    if len(values) and not (np.isfinite(values).all() and np.abs(values).max() <= 1):
        raise ValueError("expected differences of scores from -1 to 1; score each item from 0 to 1")
    goal = -math.log(alpha)
    stakes = _bets(values, goal if is_all else None)
    for_it, against = _wealth(values, margin, stakes), _wealth(-values, -margin, stakes)
    accepted, rejected = _first_above(for_it, goal), _first_above(against, goal)
    outcome: Decided = "inconclusive"
    after = None
    if accepted is not None and (rejected is None or accepted < rejected):
        outcome, after = "passed", accepted
    elif rejected is not None:
        outcome, after = "rejected", rejected
    low, high = _interval(values, alpha, is_all=is_all)
    return DropFinding(
        outcome=outcome,
        num_items=len(values),
        decided_after=after,
        drop=float(-values.mean()) if len(values) else 0.0,
        low=low,
        high=high,
        discordance=float((values != 0).mean()) if len(values) else 0.0,
        more_items=_more(values, margin, goal, is_all=is_all) if after is None else None,
    )


def items_planned(margin: float, discordance: float, alpha: float = 0.05) -> int:
    """Return how many items a test of fixed size needs to show, in four cases of five, that an equal one is equal.

    Args:
        margin: Largest acceptable drop, above 0.
        discordance: Share of items on which the two will differ.
        alpha: Probability of a wrong acceptance.
    """
    none_differs = math.ceil(round(-math.log(alpha), 2) / margin)  # at 5 % the rule of three
    return max(math.ceil(_square_quantiles(alpha) * discordance / margin**2), none_differs)


def largest_discordance(margin: float, num_items: int, alpha: float = 0.05) -> float:
    """Return the discordance up to which this number of items can show an equal one to be equal; see `items_planned`."""
    return num_items * margin**2 / _square_quantiles(alpha)


def _square_quantiles(alpha: float) -> float:
    """Return the square of the sum of two standard normal quantiles, of confidence and of power: 6.18 at 95 %."""
    normal = NormalDist()
    return round((normal.inv_cdf(1 - alpha) + normal.inv_cdf(_POWER)) ** 2, 2)


def _bets(values: Array, goal: float | None) -> tuple[Array, Array]:
    """Return the stakes of each bettor, as shares of the largest that cannot lose everything, and the bettors' shares.

    Args:
        values: (items,); the stake on one depends on those before it.
        goal: Logarithm of the capital that is to be reached with all of them; None: how many there will be is not known.

    Returns:
        (bettors, 1 or items), (bettors, 1) that come to 1.
    """
    fixed = _BETS[:, None]
    if goal is None or not len(values):
        return fixed, np.full(fixed.shape, 1.0 / len(fixed))
    before = np.concatenate([[0.0], np.square(values).cumsum()[:-1]])
    mean_square = (_NO_ITEMS + before) / np.arange(1, len(values) + 1)
    planned = np.minimum(_MOST_PLANNED, np.sqrt(2 * goal / (len(values) * mean_square)))
    shares = np.array([*[(1 - _PLANNED) / len(fixed)] * len(fixed), _PLANNED])
    return np.vstack([np.broadcast_to(fixed, (len(fixed), len(values))), planned]), shares[:, None]


def _wealth(values: Array, margin: float, stakes: tuple[Array, Array]) -> Array:
    """Return the logarithm of the capital after each item of a bettor against "the mean is -margin or less"."""
    each = np.log1p(stakes[0] / (1.0 - margin) * (values + margin)).cumsum(axis=1)
    return _log_mean(each, stakes[1])


def _log_mean(each: Array, shares: Array) -> Array:
    most = each.max(axis=0)
    return np.asarray(most + np.log((shares * np.exp(each - most)).sum(axis=0)))


def _first_above(capital: Array, goal: float) -> int | None:
    above = np.flatnonzero(capital >= goal)
    return int(above[0]) + 1 if len(above) else None


def _interval(values: Array, alpha: float, *, is_all: bool) -> tuple[float, float]:
    """Return the drops that neither bettor, each with half of alpha, has shown wrong after all items."""
    if not len(values):
        return -1.0, 1.0
    goal = -math.log(alpha / 2)
    stakes = _bets(values, goal if is_all else None)
    return -_least_refuted(-values, goal, stakes), _least_refuted(values, goal, stakes)


def _least_refuted(values: Array, goal: float, stakes: tuple[Array, Array]) -> float:
    """Return the least drop of which a bettor against "at least so large" has shown that it is too large.

    The capital grows with the drop, whatever the stake: 1 + c (d + m) / (1 - m) does for every d >= -1.
    """
    low, high = -1.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        each = np.log1p(stakes[0] / (1.0 - middle) * (values + middle)).sum(axis=1)
        if float(_log_mean(each[:, None], stakes[1])[0]) >= goal:
            high = middle
        else:
            low = middle
    return high


def _more(values: Array, margin: float, goal: float, *, is_all: bool) -> int | None:
    if not len(values):
        return None
    kinds, counts = np.unique(values.round(4), return_counts=True)  # close enough, and never very many
    weights = counts / len(values)
    fixed = (1.0 if not is_all else 1 - _PLANNED) / len(_BETS)
    sizes = len(values) * 1.05 ** np.arange(1, _SIZES)
    planned = np.minimum(_MOST_PLANNED, np.sqrt(2 * goal / (_NO_ITEMS + sizes * (np.square(kinds) @ weights))))
    found = []
    for signed, at in ((kinds, margin), (-kinds, -margin)):
        growth = float(_growth(signed, weights, at, _BETS).max())
        if growth > 0:
            found.append(math.ceil((goal - math.log(fixed)) / growth))
        if is_all:
            reached = sizes[sizes * _growth(signed, weights, at, planned) >= goal - math.log(_PLANNED)]
            found += [math.ceil(size) for size in reached[:1]]
    return max(1, min(found) - len(values)) if found else None


def _growth(kinds: Array, weights: Array, margin: float, stakes: Array) -> Array:
    """Return (stakes,) by how much the logarithm of a capital grows with an item, on average over items of these kinds."""
    return np.asarray(np.log1p(np.outer(stakes / (1.0 - margin), kinds + margin)) @ weights)
