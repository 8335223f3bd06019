"""Which items of a golden set lost pixels of their masks, and the outlines of what is true and of what both named.

An item's loss is the mean over the classes that it truly has of the incumbent's IoU less the candidate's, in that item alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from headrace.runs.formats.variants import Outline, WorstItem
from headrace.validate.segmentation import UNKNOWN

Array = np.ndarray

#: Of one mask, in a picture: more cannot be told apart.
_MOST_OUTLINES, _MOST_POINTS = 12, 64
#: Share of a mask's longer side by which an outline may be off.
_ROUGH = 0.005


def item_overlaps(counted: Sequence[Array]) -> Array:
    """Return (items,) mean IoU of the classes that an item truly has, 0 where it has none.

    Args:
        counted: Of each item; see `overlap.count_pixels`.
    """
    right, true, named = np.stack(counted, axis=1).astype(float)
    either = true + named - right
    each = np.divide(right, either, out=np.zeros_like(right), where=either > 0)
    there = (true > 0).sum(axis=1)
    found: Array = np.where(true > 0, each, 0.0).sum(axis=1) / np.maximum(1, there)
    return found


def worst_masks(
    places: Sequence[int],
    a: Array,
    b: Array,
    *,
    masks: tuple[Array, Array, Array],
    files: Sequence[str],
    name: Callable[[int], str],
) -> tuple[WorstItem, ...]:
    """Return items with the outlines of their masks.

    Args:
        places: Of the items in the golden set.
        a: (items of the set,) IoU of the incumbent in each.
        b: The same of the candidate.
        masks: Of these items (items, h, w) classes: true, the incumbent's, the candidate's.
        files: Of all items; empty for arrays.
        name: Of a class.
    """
    found = []
    for place, true, named_a, named_b in zip(places, *masks, strict=True):
        classes, sizes = np.unique(true[true != UNKNOWN], return_counts=True)
        # Every boundary is between two classes, so it is drawn without the class that is all around.
        around = int(classes[sizes.argmax()]) if len(classes) else UNKNOWN
        drawn = [_outlines(one, around, name) for one in (true, named_a, named_b)]
        found.append(
            WorstItem(
                item=int(place), file=files[place] if files else "",
                label=", ".join(name(int(one)) for one in classes[np.argsort(-sizes, kind="stable")][:4]),
                a=f"IoU {a[place]:.2f}", b=f"IoU {b[place]:.2f}", loss=float(a[place] - b[place]),
                outlines=drawn[0], outlines_a=drawn[1], outlines_b=drawn[2],
            )
        )  # fmt: skip
    return tuple(found)


def _outlines(mask: Array, around: int, name: Callable[[int], str]) -> tuple[Outline, ...]:
    """Return the largest outlines of the classes of a mask, without the one that is around."""
    height, width = mask.shape
    found = []
    for one in np.unique(mask):
        if int(one) in (around, UNKNOWN):
            continue
        contours, _ = cv2.findContours((mask == one).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        found += [(cv2.contourArea(contour), name(int(one)), contour) for contour in contours]
    found.sort(key=lambda outline: -outline[0])
    rough = _ROUGH * max(mask.shape)
    return tuple(
        Outline(
            name=named,
            # The middle of each pixel, as a share of the mask's sides.
            points=tuple(
                (round((float(x) + 0.5) / width, 4), round((float(y) + 0.5) / height, 4))
                for x, y in cv2.approxPolyDP(contour, rough, True)[:_MOST_POINTS, 0]
            ),
        )
        for _, named, contour in found[:_MOST_OUTLINES]
    )
