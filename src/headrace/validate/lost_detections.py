"""Which items of a golden set lost detections, and what share of them: what people see, beside mAP, which is none of this.

Of an image with n true boxes a detector's n best-scored detections count; one is right that overlaps a free true box of its
class by half or more. So no threshold of scores is needed, and the share of true boxes that are found is also the share of
those detections that are right (R-precision: C. D. Manning, P. Raghavan, H. Schuetze, "Introduction to Information Retrieval",
2008, section 8.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.runs.formats.variants import BoxShown, WorstItem
from headrace.validate.detections import OVERLAP, Boxes, overlaps_of
from headrace.validate.slices import FEWEST_SOURCES

Array = np.ndarray

_DRAWS = 1000
#: Of one item, in a picture: more cannot be told apart.
_MOST_SHOWN = 20


def num_found(truth: Boxes, found: Boxes) -> int:
    """Return how many true boxes of an item are found by as many of the best-scored detections."""
    free, best = np.ones(len(truth.boxes), bool), _best(truth, found)
    overlaps = overlaps_of(found.boxes[best], truth.boxes)
    overlaps[found.classes[best][:, None] != truth.classes] = 0.0
    for row in overlaps:
        row[~free] = 0.0
        if row.max() >= OVERLAP:
            free[row.argmax()] = False
    return int((~free).sum())


def fewer_found(a: Array, b: Array, sources: Array | None) -> tuple[float, float, float] | None:
    """Return the share of the incumbent's right detections that the candidate lost, with its 95 % interval; None: A has none.

    Args:
        a: (items,) true boxes that the incumbent found.
        b: (items,) true boxes that the candidate found.
        sources: (items,) what each is from; None, or too few of them: items are drawn.
    """
    if not a.sum():
        return None
    groups = np.arange(len(a)) if sources is None else np.unique(sources, return_inverse=True)[1]
    if sources is not None and groups.max() + 1 < FEWEST_SOURCES:
        groups = np.arange(len(a))
    num = int(groups.max()) + 1
    first, lost = np.bincount(groups, a, num), np.bincount(groups, a - b, num)
    random = np.random.default_rng(0)
    counts = (np.bincount(random.integers(0, num, num), minlength=num) for _ in range(_DRAWS))
    shares = [float(one @ lost / (one @ first)) for one in counts if one @ first]
    low, high = np.quantile(shares, [0.025, 0.975])
    return float(low), float(lost.sum() / first.sum()), float(high)


def worst_detections(
    truth: Sequence[Boxes],
    a: Sequence[Boxes],
    b: Sequence[Boxes],
    losses: Array,
    *,
    most: int,
    files: Sequence[str],
    name: Callable[[int], str],
) -> tuple[WorstItem, ...]:
    """Return the items whose detections lost most, as far as any lost, with boxes to draw.

    Args:
        truth: Of each item.
        a: What the incumbent found.
        b: What the candidate found.
        losses: (items,) true boxes that the incumbent found and the candidate did not, less the other way round.
        most: Items.
        files: Of the items; empty for arrays.
        name: Of a class.
    """
    order = np.argsort(-losses, kind="stable")[:most]
    return tuple(
        WorstItem(
            item=int(place),
            file=files[place] if files else "",
            label=f"{len(truth[place].boxes)} boxes",
            a=f"{num_found(truth[place], a[place])} found",
            b=f"{num_found(truth[place], b[place])} found",
            loss=float(losses[place] / max(1, len(truth[place].boxes))),
            boxes=_make_shown_boxes(truth[place], range(len(truth[place].boxes)), name),
            boxes_a=_make_shown_boxes(a[place], _best(truth[place], a[place]), name),
            boxes_b=_make_shown_boxes(b[place], _best(truth[place], b[place]), name),
        )
        for place in order
        if losses[place] > 0
    )


def _best(truth: Boxes, found: Boxes) -> Array:
    """Return the places of as many detections as there are true boxes, the highest scores first."""
    return np.argsort(-found.scores, kind="stable")[: len(truth.boxes)]


def _make_shown_boxes(boxes: Boxes, places: Array | range, name: Callable[[int], str]) -> tuple[BoxShown, ...]:
    return tuple(
        BoxShown(
            x1=float(boxes.boxes[place][0]), y1=float(boxes.boxes[place][1]), x2=float(boxes.boxes[place][2]),
            y2=float(boxes.boxes[place][3]), name=name(int(boxes.classes[place])), score=float(boxes.scores[place]),
        )
        for place in list(places)[:_MOST_SHOWN]
    )  # fmt: skip
