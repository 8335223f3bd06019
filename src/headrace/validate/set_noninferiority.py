"""Whether a candidate is no worse by more than a margin, for what has a value only as a set: F1, areas, mAP.

Items (or whole sources, where it is known what each item is from) are drawn again with replacement, both variants are judged
on each draw, and the spread of the differences says how far the drop that was seen may be off. Unlike the test of single items
this looks once, at the end.

References:
    B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 6 and 13.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from headrace.runs.formats.outcomes import Decided
from headrace.validate import measuring
from headrace.validate.slices import FEWEST_SOURCES

#: From fewer draws no spread is taken.
FEWEST_DRAWS = 50
#: Draws beyond an end of the interval from which on it is read off them, instead of from a normal distribution of their spread.
_BEYOND = 10
_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFinding:
    """What a comparison of sets came to."""

    outcome: Decided
    a: float
    b: float
    drop: float
    low: float
    """Of the one-sided intervals of the drop: it is above this with 1 - alpha."""
    high: float
    """It is below this with 1 - alpha."""
    draws: int
    why: str = ""
    """Why it is not decided."""


def judge_set(
    value: Callable[[np.ndarray], tuple[float, float]],
    num_items: int,
    sources: np.ndarray | None,
    margin: float,
    alpha: float,
    *,
    stop: Callable[[], bool] = lambda: False,
    seconds: float = _SECONDS,
) -> SetFinding:
    """Return whether the candidate's drop is below the margin.

    Args:
        value: (places of items) -> the values of incumbent and candidate on these.
        num_items: Of the golden set.
        sources: (items,) what each is from; None, or too few of them: items are drawn.
        margin: Largest drop that is acceptable.
        alpha: Probability of a wrong decision, at most, for each of the two.
        stop: Asked before each draw.
        seconds: After which no new draw is made.
    """
    drawn = draw(value, num_items, sources, stop=stop, seconds=seconds)
    return decide_set(drawn, 0, margin, alpha)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Values of both variants on the whole set, and their differences on draws of it; several where a set has several."""

    a: np.ndarray
    """(values,)."""
    b: np.ndarray
    drops: np.ndarray
    """(draws, values) incumbent less candidate; NaN where a draw has no such value."""
    num_groups: int
    """Items or sources that were drawn from."""
    what: str
    """`items` or `sources`."""
    seconds: float
    """That there were."""


def draw(
    value: Callable[[np.ndarray], tuple[Any, Any]],
    num_items: int,
    sources: np.ndarray | None,
    *,
    stop: Callable[[], bool] = lambda: False,
    seconds: float = _SECONDS,
) -> Drawn:
    """Return what both variants are worth on the set and on draws of it; see `judge_set`.

    Args:
        value: (places of items) -> a number of each of the two, or (values,) of each.
        num_items: Of the set.
        sources: (items,) what each is from; None: not known.
        stop: Asked before each draw.
        seconds: After which no new draw is made.
    """
    a, b = (np.atleast_1d(one) for one in value(np.arange(num_items)))
    groups = _groups(num_items, sources)
    random = np.random.default_rng(0)
    drops: list[np.ndarray] = []
    ends, most = time.monotonic() + seconds, measuring.current().max_draws
    while len(drops) < most and time.monotonic() < ends and not stop():
        drawn = random.integers(0, len(groups), len(groups))
        first, second = value(np.concatenate([groups[number] for number in drawn]))
        drops.append(np.atleast_1d(first) - np.atleast_1d(second))
    what = "items" if sources is None or len(groups) == num_items else "sources"
    return Drawn(a, b, np.reshape(drops, (len(drops), len(a))), len(groups), what, seconds)


def decide_set(drawn: Drawn, column: int, margin: float, alpha: float) -> SetFinding:
    """Return what draws say of one of their values; see `judge_set`."""
    a, b, every = float(drawn.a[column]), float(drawn.b[column]), drawn.drops[:, column]
    drops = every[np.isfinite(every)]
    if len(drops) < FEWEST_DRAWS:
        why = f"only {len(drops)} draws in {drawn.seconds:.0f} s: a faster metric, or fewer items"
        return SetFinding(outcome="inconclusive", a=a, b=b, drop=a - b, low=-1.0, high=1.0, draws=len(drops), why=why)
    low, high = _ends(drops, a - b, alpha)
    # Where nothing differs, every draw says 0, however few items there are: the rule of three.
    needed = math.ceil(-math.log(alpha) / margin)
    enough = drawn.num_groups >= needed
    outcome: Decided = "inconclusive"
    why = "more items would narrow it down"
    if low > margin:
        outcome, why = "rejected", ""
    elif high <= margin and enough:
        outcome, why = "passed", ""
    elif high <= margin:
        why = f"{drawn.num_groups} {drawn.what} cannot show so small a margin; {needed} may"
    return SetFinding(outcome=outcome, a=a, b=b, drop=a - b, low=low, high=high, draws=len(drops), why=why)


def _groups(num_items: int, sources: np.ndarray | None) -> list[np.ndarray]:
    """Return the places of the items that are drawn together."""
    if sources is not None:
        names, group = np.unique(sources, return_inverse=True)
        if len(names) >= FEWEST_SOURCES:
            return [np.flatnonzero(group == number) for number in range(len(names))]
    return list(np.arange(num_items)[:, None])


def _ends(drops: np.ndarray, drop: float, alpha: float) -> tuple[float, float]:
    if len(drops) * alpha >= _BEYOND:
        low, high = np.quantile(drops, [alpha, 1 - alpha])
        return float(low), float(high)
    reach = NormalDist().inv_cdf(1 - alpha) * float(drops.std(ddof=1))
    return drop - reach, drop + reach
