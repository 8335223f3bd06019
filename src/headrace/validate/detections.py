"""What a detector found, read from its outputs, and what is true, read from a golden set: boxes, classes, scores.

Boxes are x1, y1, x2, y2 in pixels of the model's input. Outputs are read in the layouts in which detectors are exported with
the suppression of doubles included:

    boxes (items, n, 4), labels (items, n), scores (items, n)    rows to fill up have score 0 or label -1, or come after
                                                                 the item's number in the output num_dets
    boxes (n, 4), labels (n,), scores (n,)                       of one item a call, as torchvision exports them
    one output (items, n, 6)                                     x1, y1, x2, y2, score, label, as of YOLO with NMS included
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError

Array = np.ndarray

#: What outputs are called, TensorRT's plugin included.
_NAMES = {
    "boxes": ("boxes", "det_boxes", "bboxes"),
    "labels": ("labels", "classes", "det_classes"),
    "scores": ("scores", "det_scores"),
    "count": ("num_dets", "num_detections"),
}
#: From which on two boxes are one object.
OVERLAP = 0.5
LAYOUTS = (
    "boxes (items, n, 4) of x1, y1, x2, y2 in pixels of the input, labels (items, n) and scores (items, n), the same without "
    "items for one item a call (--batch 1), one output (items, n, 6) of x1, y1, x2, y2, score, label, or raw heads: "
    "(items, 4 + classes, n), (items, n, 5 + classes), (items, n, 4) with (items, n, classes)"
)


@dataclass(frozen=True, slots=True)
class Boxes:
    """What is, or was found, in one image."""

    boxes: Array
    """(n, 4) float64: x1, y1, x2, y2, in pixels of the model's input."""
    classes: Array
    """(n,) int64."""
    scores: Array
    """(n,) float64, above 0; of what is true all 1."""


def read_boxes(outputs: Any, num_items: int) -> list[Boxes]:
    """Return what was found in each item of a call.

    Args:
        outputs: In one of the layouts above.
        num_items: Of the call.

    Raises:
        SettingsError: If outputs come in another layout, or the number of detections is not that of each item.
    """
    parts = _parts(outputs)
    if parts is None or len(parts[0]) != num_items:
        raise SettingsError(
            f"detections are read from {LAYOUTS}; the model gives {_describe_outputs(outputs)} for {num_items} item(s). "
            "Score other layouts by your own --metric MODULE:FUNCTION"
        )
    return [_drop_filling(*rows) for rows in zip(*parts, strict=True)]


def are_detections(outputs: Any) -> bool:
    """Return whether outputs are detections by their names: then none of them holds scores of classes."""
    return _are_named(outputs) and _parts(outputs) is not None


def detections_in(outputs: Any) -> list[Boxes] | None:
    """Return what was found in each item of a call, where outputs are detections beyond doubt; None if they are not.

    By their names; six columns without names hold boxes, scores from 0 to 1 and whole labels.

    Raises:
        SettingsError: If they are, but the number of detections is not that of each item.
    """
    parts = _parts(outputs)
    if parts is None or not (_are_named(outputs) or _are_plausible(*parts)):
        return None
    return [_drop_filling(*rows) for rows in zip(*parts, strict=True)]


def true_boxes(truth: Mapping[str, Array]) -> list[Boxes]:
    """Return what is in each item of a golden set.

    Args:
        truth: `boxes` (items, n, 4), and `classes` (items, n), -1 where a row only fills up.

    Raises:
        SettingsError: If they have other shapes, or a box is none.
    """
    boxes, classes = np.asarray(truth["boxes"]), np.asarray(truth["classes"])
    fit = boxes.ndim == 3 and boxes.shape[2] == 4 and classes.shape == boxes.shape[:2] and classes.dtype.kind in "iu"
    if not fit:
        raise SettingsError(
            f"truth_boxes is {boxes.dtype}{list(boxes.shape)} and truth_classes {classes.dtype}{list(classes.shape)}; expected "
            "(items, n, 4) of x1, y1, x2, y2 and (items, n) whole numbers, -1 where a row only fills up"
        )
    found = []
    for item, (rows, own) in enumerate(zip(boxes, classes, strict=True)):
        real = own >= 0
        problem = box_problem(rows[real])
        if problem:
            raise SettingsError(f"truth_boxes, item {item}: {problem}")
        found.append(Boxes(rows[real].astype(float), own[real].astype(np.int64), np.ones(real.sum())))
    return found


def box_problem(boxes: Array) -> str | None:
    """Return in words what is wrong with the first bad one of (n, 4) boxes; None if all are well."""
    good = np.isfinite(boxes).all(axis=1) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    if good.all():
        return None
    bad = boxes[int(np.flatnonzero(~good)[0])].tolist()
    return f"{bad} is no box; expected finite numbers x1, y1, x2, y2 with x1 < x2 and y1 < y2"


def overlaps_of(a: Array, b: Array) -> Array:
    """Return (len(a), len(b)) intersections over unions of (n, 4) boxes; 0 where both have no area."""
    low, high = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    shared = (high - low).clip(0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1) for boxes in (a, b)]
    together = areas[0][:, None] + areas[1] - shared
    overlaps: Array = np.divide(shared, together, out=np.zeros_like(shared), where=together > 0)
    return overlaps


def _parts(outputs: Any) -> tuple[Array, Array, Array] | None:
    """Return (items, n, 4) boxes, (items, n) labels and (items, n) scores; None if that is not what there is."""
    if not isinstance(outputs, Mapping):
        rows = np.asarray(outputs)
        fit = rows.ndim == 3 and rows.shape[2] == 6
        return (rows[..., :4], rows[..., 5], rows[..., 4]) if fit else None
    named = {part: np.asarray(outputs[own]) for part, names in _NAMES.items() for own in names if own in outputs}
    if not {"boxes", "labels", "scores"} <= set(named):
        return next((_parts(one) for one in outputs.values()), None) if len(outputs) == 1 else None
    boxes, labels, scores = named["boxes"], named["labels"], named["scores"]
    if boxes.ndim == 2:
        boxes, labels, scores = boxes[None], labels[None], scores[None]
    if boxes.ndim != 3 or boxes.shape[2] != 4 or not (labels.shape == scores.shape == boxes.shape[:2]):
        return None
    return boxes, labels, _clear_filling(scores, named["count"]) if "count" in named else scores


def _clear_filling(scores: Array, counts: Array) -> Array:
    """Return scores that are 0 from the row on that is an item's number of detections.

    Raises:
        SettingsError: If there is not one number for each item.
    """
    if counts.size != len(scores):
        raise SettingsError(
            f"num_dets (num_detections) is {counts.dtype}{list(counts.shape)}; expected the number of detections of each item, "
            f"{[len(scores)]} or {[len(scores), 1]}. Export it so, or score other layouts by your own --metric MODULE:FUNCTION"
        )
    beyond = np.arange(scores.shape[1]) >= counts.reshape(-1, 1)
    return np.where(beyond, 0, scores)


def _are_named(outputs: Any) -> bool:
    return isinstance(outputs, Mapping) and len(outputs) > 1


def _are_plausible(boxes: Array, labels: Array, scores: Array) -> bool:
    """Return whether six columns can be detections: features of as many have fractions where labels are, and negative sizes."""
    fit = (boxes[..., 2:] >= boxes[..., :2]).all(axis=-1) & (scores >= 0) & (scores <= 1) & (labels == np.round(labels))
    known = np.isfinite(boxes).all(axis=-1) & np.isfinite(scores) & np.isfinite(labels)
    return bool((fit | ~known).all())


def _drop_filling(boxes: Array, labels: Array, scores: Array) -> Boxes:
    """Return an item's detections without rows that only fill up, and without NaN and infinities."""
    real = (scores > 0) & (labels >= 0) & np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    return Boxes(boxes[real].astype(float), labels[real].round().astype(np.int64), scores[real].astype(float))


def _describe_outputs(outputs: Any) -> str:
    named = outputs if isinstance(outputs, Mapping) else {"one output": outputs}
    return ", ".join(f"{name} {list(np.shape(array))}" for name, array in named.items())
