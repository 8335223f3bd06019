"""Whether a drop hides in a part of the golden set, and whether it hangs on a few sources.

Two variants may be as often right on average while one of them has forgotten a class, or fails in the dark. Each part is
tested by itself for a drop beyond a wider margin; so many tests find something by chance, and share the probability of a false
alarm among them (Bonferroni). Parts too small to show such a drop show nothing, and say nothing.

References:
    C. E. Bonferroni, 1936; A. C. Davison, D. V. Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8 (whole
    groups are drawn where what is in one group is alike).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from headrace.runs.formats.variants import SliceResult
from headrace.validate.noninferiority import Array, judge_drop

_ALPHA = 0.05
_DRAWS = 2000
#: Parts that are kept for a report.
MOST_SLICES = 60
#: Fewer sources than these give no interval worth the name.
FEWEST_SOURCES = 8


def slices_of(
    differences: Array, parts: Mapping[str, np.ndarray], margin: float, scores: tuple[Array, Array] | None = None
) -> list[SliceResult]:
    """Return what both variants are worth in each part.

    Args:
        differences: (items,) candidate's score less the incumbent's, each in [-1, 1].
        parts: {property: (items,)}, the part that each item is in.
        margin: Largest acceptable drop in a part, above 0 and below 1.
        scores: (items,) of the incumbent and of the candidate; None: only agreement is known.
    """
    members = [(f"{name} {value}", values == value) for name, values in parts.items() for value in np.unique(values)]
    found = []
    for name, own in members:
        judged = judge_drop(
            np.random.default_rng(0).permutation(differences[own]), margin, _ALPHA / len(members), is_all=True
        )
        a, b = (None, None) if scores is None else (float(one[own].mean()) for one in scores)
        found.append(
            SliceResult(
                name=name, num_items=judged.num_items, a=a, b=b, drop=judged.drop, low=judged.low, high=judged.high,
                outcome=judged.outcome,
            )
        )  # fmt: skip
    return found


def worst_of(slices: Iterable[SliceResult]) -> SliceResult | None:
    """Return the part with the largest drop that is surely above the margin; None if there is none."""
    return max((one for one in slices if one.outcome == "rejected"), key=lambda one: one.drop, default=None)


def worst_first(slices: Iterable[SliceResult]) -> tuple[SliceResult, ...]:
    """Return the parts of a report: the rejected ones, then those that lost most, at most sixty."""
    ordered = sorted(slices, key=lambda one: (one.outcome != "rejected", -one.drop))
    return tuple(ordered[:MOST_SLICES])


def find_too_small(parts: Mapping[str, np.ndarray], margin: float) -> list[tuple[str, int]]:
    """Return (name, items) of the parts that show no drop even where every answer was lost, the smallest first.

    Args:
        parts: {property: (items,)}, the part that each item is in.
        margin: Largest acceptable drop in a part, above 0 and below 1.
    """
    sizes = [
        (f"{name} {value}", int((values == value).sum()))
        for name, values in parts.items()
        for value in np.unique(values)
    ]
    alpha = _ALPHA / max(1, len(sizes))
    lost = (judge_drop(-np.ones(num), margin, alpha, is_all=True).outcome for num in range(1, 1000))
    needed = next((num for num, outcome in enumerate(lost, 1) if outcome == "rejected"), 1000)  # a margin near 1
    return sorted(((name, num) for name, num in sizes if num < needed), key=lambda one: one[1])


def drop_by_source(differences: Array, sources: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % interval of the drop when whole sources are drawn again; None if there are too few.

    Items cut from one photograph are right or wrong together: among 3,000 crops of 30 photographs there is less to learn than
    among 3,000 photographs, and an interval over items is too narrow.

    Args:
        differences: (items,) candidate's score less the incumbent's.
        sources: (items,) what each item is from.
    """
    _, group = np.unique(sources, return_inverse=True)
    num = int(group.max()) + 1 if len(group) else 0
    if num < FEWEST_SOURCES:
        return None
    sums, counts = np.bincount(group, differences, num), np.bincount(group, minlength=num)
    drawn = np.random.default_rng(0).integers(0, num, (_DRAWS, num))
    drops = -sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(drops, [0.025, 0.975])
    return float(low), float(high)
