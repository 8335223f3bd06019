"""Boxes read from the heads of detectors as they are exported without the suppression of doubles.

    yolov8   (items, 4 + classes, n)      centre, width, height and a score for each class: the usual export of YOLOv8 to 12
    rows     (items, n, 4 + classes)      the same, turned
    yolov5   (items, n, 5 + classes)      the fifth, of there being an object, multiplies those of classes
    pair     (items, n, 4), (items, n, classes)    boxes and scores, as of SSD and DETR

Whether an array is such a head is seen from its numbers: widths are not negative, coordinates go beyond 2 pixels, scores are
from 0 to 1. The names that Ultralytics writes into a file say it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.stages.postprocess import nms
from headrace.validate.detections import Boxes, are_detections, detections_in, read_boxes
from headrace.validate.parity import name_outputs

Array = np.ndarray
Layout = Literal["yolov8", "rows", "yolov5", "pair"]

#: Two boxes of a class that overlap more are one, as Ultralytics has it.
_DOUBLE = 0.7
_MOST_BOXES = 300
#: Precision is counted over all detections, unsure ones too.
_LEAST_SCORE = 0.001
#: Probability of nothing in an anchor in which nothing is: a detector without such a class gives none as much.
_SURELY_NOTHING = 0.8
#: Anchors of a head: fewer are none.
_FEWEST = 16
_FIRST = {"yolov8": 4, "rows": 4, "yolov5": 5}


@dataclass(frozen=True, slots=True)
class Head:
    """How boxes are read from outputs."""

    layout: Layout
    boxes: str = ""
    """Name of the output of a pair; likewise `scores`."""
    scores: str = ""
    has_corners: bool = False
    """Whether boxes are x1, y1, x2, y2; else centre, width, height."""
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    background: int | None = None
    """Place of the class that stands for nothing."""

    def read(self, outputs: Any, least: float) -> list[Boxes] | None:
        """Return what is found in each item with a score of at least `least`; None if outputs have another layout."""
        rows = self._rows(name_outputs(outputs))
        return None if rows is None else [self._select_boxes(*one, least) for one in zip(*rows, strict=True)]

    def _rows(self, each: Mapping[str, Array]) -> tuple[Array, Array] | None:
        """Return (items, n, 4) boxes and (items, n, classes) scores."""
        if self.layout == "pair":
            boxes, scores = each.get(self.boxes), each.get(self.scores)
            if (
                boxes is None
                or scores is None
                or boxes.ndim != 3
                or scores.ndim != 3
                or boxes.shape[:2] != scores.shape[:2]
            ):
                return None
            return boxes, self._activate(scores)
        array = next(iter(each.values()))
        if len(each) != 1 or array.ndim != 3 or array.dtype.kind != "f":
            return None
        rows = array.swapaxes(1, 2) if self.layout == "yolov8" else array
        first = _FIRST[self.layout]
        if rows.shape[2] <= first:
            return None
        scores = rows[..., first:] * rows[..., 4:5] if self.layout == "yolov5" else rows[..., first:]
        return rows[..., :4], scores

    def _activate(self, scores: Array) -> Array:
        numbers = scores.astype(np.float64)
        if self.activation == "softmax":
            numbers = _softmax(numbers)
        elif self.activation == "sigmoid":
            numbers = 1 / (1 + np.exp(-numbers.clip(-50, 50)))
        if self.background is not None:
            numbers = numbers.copy()
            numbers[..., self.background] = 0.0
        return numbers

    def _select_boxes(self, boxes: Array, scores: Array, least: float) -> Boxes:
        classes = scores.argmax(axis=1)
        best = np.take_along_axis(scores, classes[:, None], axis=1)[:, 0]
        kept = np.flatnonzero((best >= least) & np.isfinite(boxes).all(axis=1))  # a NaN is not
        rows, best, classes = boxes[kept].astype(np.float64), best[kept].astype(np.float64), classes[kept]
        if not self.has_corners:
            half = rows[:, 2:] / 2
            rows = np.concatenate([rows[:, :2] - half, rows[:, :2] + half], axis=1)
        left = nms(rows, best, score_threshold=0.0, iou_threshold=_DOUBLE, classes=classes, max_boxes=_MOST_BOXES)
        return Boxes(rows[left], classes[left].astype(np.int64), best[left])


def head_of(answers: Sequence[Any], num_classes: int | None = None) -> Head | None:
    """Return the head that answers are of; None if they are of none for sure.

    Args:
        answers: Of the model in use, call by call.
        num_classes: As the model's file says; None: it does not.
    """
    each = [name_outputs(one) for one in answers]
    if len(each[0]) == 2:
        return _pair(each)
    if len(each[0]) != 1:
        return None
    arrays = [next(iter(one.values())) for one in each]
    if any(one.ndim != 3 or one.dtype.kind != "f" for one in arrays):
        return None
    channels, rows = arrays[0].shape[1:]
    layouts: tuple[Layout, ...] = ("yolov8",) if channels < rows else ("yolov5", "rows")
    return next((Head(one) for one in layouts if _is_head(one, arrays, num_classes)), None)


def boxes_found(outputs: Any, num_items: int) -> list[Boxes]:
    """Return what was found in each item of a call by a model that is known to be a detector, whatever its layout.

    Raises:
        SettingsError: If outputs come in a layout that is not known.
    """
    head = None if are_detections(outputs) or _has_six_columns(outputs) else _find_head_by_shape(outputs)
    found = None if head is None else head.read(outputs, _LEAST_SCORE)
    return read_boxes(outputs, num_items) if found is None or len(found) != num_items else found


def _has_six_columns(outputs: Any) -> bool:
    array = next(iter(name_outputs(outputs).values()))
    return bool(array.ndim == 3 and array.shape[2] == 6 and detections_in(outputs) is not None)


def _find_head_by_shape(outputs: Any) -> Head | None:
    """Return the head that outputs are of by their shape alone."""
    found = head_of([outputs])
    if found is not None:
        return found
    array = next(iter(name_outputs(outputs).values()))
    if len(name_outputs(outputs)) != 1 or array.ndim != 3 or array.dtype.kind != "f" or min(array.shape[1:]) < 5:
        return None
    return Head("yolov8" if array.shape[1] < array.shape[2] else "yolov5")


def _is_head(layout: Layout, arrays: Sequence[Array], num_classes: int | None) -> bool:
    """Return whether the numbers of all arrays are those of a head of single boxes."""
    turned = [one.swapaxes(1, 2) if layout == "yolov8" else one for one in arrays]
    num, width = turned[0].shape[1:]
    if num_classes is not None and width != _FIRST[layout] + num_classes:
        return False
    if width <= _FIRST[layout] or num < _FEWEST:
        return False
    rows = np.concatenate([one.reshape(-1, width) for one in turned])
    rows = rows[np.isfinite(rows).all(axis=1)]
    if not len(rows) or rows[:, 2:4].min() < 0:
        return False
    scores = rows[:, 4:]
    is_scored = scores.min() >= -1e-3 and scores.max() <= 1 + 1e-2
    return bool(is_scored and (num_classes is not None or rows[:, :4].max() > 2))


def _pair(each: Sequence[Mapping[str, Array]]) -> Head | None:
    """Return how boxes and scores of the same rows are read; None if two outputs are not that."""
    names = list(each[0])
    shapes = {name: each[0][name].shape for name in names}
    if any(len(shape) != 3 for shape in shapes.values()) or len({shape[:2] for shape in shapes.values()}) != 1:
        return None
    fours = [name for name in names if shapes[name][2] == 4]
    own = [name for name in fours if "box" in name.lower()] if len(fours) > 1 else fours
    if len(own) != 1:
        return None
    boxes, scores = own[0], next(name for name in names if name != own[0])
    rows = np.concatenate([one[boxes].reshape(-1, 4) for one in each])
    numbers = np.concatenate([one[scores].reshape(-1, shapes[scores][2]) for one in each])
    rows, numbers = rows[np.isfinite(rows).all(axis=1)], numbers[np.isfinite(numbers).all(axis=1)]
    if not len(rows) or not len(numbers):
        return None
    has_corners = bool((rows[:, 2:] >= rows[:, :2]).mean() > 0.99)
    if not has_corners and rows[:, 2:].min() < 0:
        return None
    if numbers.min() >= 0 and numbers.max() <= 1 + 1e-2:
        sums_up = np.allclose(numbers.sum(axis=1), 1, atol=2e-2)
        return Head("pair", boxes, scores, has_corners, "none", _background(numbers) if sums_up else None)
    background = _background(_softmax(numbers))
    return Head("pair", boxes, scores, has_corners, "sigmoid" if background is None else "softmax", background)


def _softmax(numbers: Array) -> Array:
    raised = np.exp(numbers.astype(np.float64) - numbers.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def _background(scores: Array) -> int | None:
    """Return the class, the first or the last, that most rows are sure of: nothing is in most places; None if there is none.

    Args:
        scores: (rows, classes) probabilities that add up to 1.
    """
    if scores.shape[1] < 2:
        return None
    place = max((0, scores.shape[1] - 1), key=lambda one: float(scores[:, one].mean()))
    return place if float((scores[:, place] > _SURELY_NOTHING).mean()) > 0.5 else None
