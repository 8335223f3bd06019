"""Whether two detectors answer alike: each finds what the other is sure of, in any order and with any rows to fill up.

Detections have no like at the same place of another's outputs, so they are not held against one another number by number. They
are matched by COCO's rule, as for `--metric map`: in the order of their scores each takes the free box of its class that it
overlaps most, from an intersection over union of a half on. Scores near 0.5 cross it by rounding alone: the other may have
found it with any score.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.validate.detections import OVERLAP, Boxes, detections_in, overlaps_of

Array = np.ndarray

#: Score from which on a detector is sure.
SURE = 0.5
#: Of items, those with other detections: like the median of the relative L2, it asks what most items look like.
MOST_CHANGED = 0.5


def changed_detections(a: Any, b: Any) -> Array | None:
    """Return (items,) float64: 1 where two variants' detections differ; None if outputs are none, or not of the same items."""
    firsts, seconds = detections_in(a), detections_in(b)
    if firsts is None or seconds is None or len(firsts) != len(seconds):
        return None
    return np.array([not are_alike(one, other) for one, other in zip(firsts, seconds, strict=True)], float)


def are_alike(a: Boxes, b: Boxes) -> bool:
    """Return whether each of two detectors finds in an image what the other is sure of."""
    return _finds(b, _sure(a)) and _finds(a, _sure(b))


def _sure(found: Boxes) -> Boxes:
    order = np.argsort(-found.scores, kind="stable")
    order = order[found.scores[order] >= SURE]
    return Boxes(found.boxes[order], found.classes[order], found.scores[order])


def _finds(found: Boxes, wanted: Boxes) -> bool:
    """Return whether each wanted box, in this order, has a box of its own among those found."""
    if len(found.classes) < len(wanted.classes):
        return False
    overlaps = overlaps_of(wanted.boxes, found.boxes)
    overlaps[wanted.classes[:, None] != found.classes] = 0.0
    for row in overlaps:
        best = int(row.argmax())
        if row[best] < OVERLAP:
            return False
        overlaps[:, best] = 0.0  # taken
    return True
