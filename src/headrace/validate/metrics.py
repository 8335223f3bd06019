"""What "right" means: how answers are scored against what is true, item by item or as a set.

    top1, top5, ...    the right class is among the first so many answers; per item
    f1                 mean of the classes' F1 of the first answer; of a set
    roc-auc, pr-auc    mean over classes of the area below the curve, each class against the rest; of a set
    map, map50         COCO's mean average precision of boxes, at overlaps 0.5 to 0.95 or at 0.5 alone; of a set
    iou                mean over classes of intersection over union of the pixels of masks; of a set
    module:function    the user's own: (outputs, truth) -> (items,) scores from 0 to 1, or one number from 0 to 1 for the set

Scores of items are tested item by item, which one may look at after every item. What has a value only as a set (F1, areas, mAP)
is compared by drawing items, or whole sources, again, in pairs: both variants are judged on the same draw.

References:
    J. A. Hanley, B. J. McNeil, Radiology 143, 1982 (the area below the ROC curve as the share of pairs in order);
    J. Davis, M. Goadrich, ICML 2006 (average precision: steps, not straight lines, between points).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headrace.base.errors import SettingsError
from headrace.validate.detections import Boxes, true_boxes
from headrace.validate.parity import scores_of
from headrace.validate.segmentation import ClassOverlap, count_pixels

Array = np.ndarray
Truth = Mapping[str, np.ndarray]
"""{`labels`: (items,), and every array `truth_NAME` of the golden file as NAME: (items, ...)}."""

_TOP = re.compile(r"top(\d{1,4})")


class OfDraws(Protocol):
    """Values of a set's classes for any draw of its items; what costs was done before, once."""

    classes: Array
    """(classes,) numbers of those that the golden set has."""

    def __call__(self, counts: Array) -> Array:
        """Return (classes,) values from 0 to 1, NaN where the draw has none; counts: (items,) how often each was drawn."""

    def images_with(self, place: int) -> Array:
        """Return the places of the items that have the class of this place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """How a metric whose items need more than a row of numbers is counted: item by item once, then added up for each draw."""

    needs: tuple[str, ...]
    """Arrays of the truth."""
    kept: Callable[[Any, Truth], Sequence[Any]]
    """(outputs of a call, truth of its items) -> what is kept of each item."""
    of_draws: Callable[[Sequence[Any], Truth], OfDraws]
    """(what was kept of all items, truth of all) -> values for any draw."""
    any_order: bool
    """Whether an item's answers come in any number and order, so that they cannot be held against others number by number."""
    conventions: str
    """What truth and answers must agree on; told where the incumbent is worth next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How answers are scored."""

    name: str
    score: Callable[[Any, Truth], Any]
    """(outputs of some items, truth of the same) -> (items,) scores from 0 to 1, or one number for all."""
    needs_classes: bool = True
    """Whether outputs must be scores of classes, and labels known."""
    needs_all: bool = False
    """Whether it is asked once for all items, because its value may be one of the set."""
    source: str = ""
    """Text of the user's own function: another one is another question."""
    recount: Recount | None = None
    """How it is counted for any draw of the items; None: by `score`."""

    @property
    def is_default(self) -> bool:
        """Whether it is the share of right first answers."""
        return self.name == "top1"


def metric_named(name: str) -> Metric:
    """Return one of the metrics that are built in.

    Raises:
        SettingsError: If there is none of that name.
        MissingExtra: If its library is not installed.
    """
    top = _TOP.fullmatch(name)
    if top and int(top[1]) >= 1:
        return Metric(name=name, score=_top(int(top[1])))
    if name in _OF_SETS:
        return Metric(name=name, score=_OF_SETS[name], needs_all=True)
    if name in _RECOUNTED:
        return Metric(name=name, score=_refuse_at_once, needs_classes=False, recount=_RECOUNTED[name]())
    known = ", ".join((*_OF_SETS, *_RECOUNTED))
    raise SettingsError(f"--metric {name!r} is not known; expected top1, top5, {known}, or your own as MODULE:FUNCTION")


def own_metric(name: str, function: Callable[[Any, Truth], Any]) -> Metric:
    """Return a user's function as a metric."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    return Metric(name=name, score=function, needs_classes=False, needs_all=True, source=source)


def score_outputs(metric: Metric, outputs: Any, truth: Truth, num_items: int) -> np.ndarray | float:
    """Return the scores of some items, or the one number of the set.

    Raises:
        SettingsError: If the user's function fails, or returns neither.
    """
    try:
        found = np.asarray(metric.score(outputs, truth), float)
    except SettingsError:
        raise
    except Exception as error:  # the user's own code
        raise SettingsError(f"--metric {metric.name} failed: {type(error).__name__}: {error}") from error
    if found.shape not in ((), (num_items,)):
        raise SettingsError(
            f"--metric {metric.name} returned the shape {found.shape} for {num_items} items; expected ({num_items},), a score "
            "for each, or one number"
        )
    if not (np.isfinite(found).all() and found.min(initial=0.0) >= 0 and found.max(initial=0.0) <= 1):
        raise SettingsError(f"--metric {metric.name} returned {found.ravel()[:4]}; expected scores from 0 to 1")
    return found if found.ndim else float(found)


def _top(most: int) -> Callable[[Any, Truth], np.ndarray]:
    def score(outputs: Any, truth: Truth) -> np.ndarray:
        scores, wanted = _classes(outputs), truth["labels"]
        labels = wanted.clip(0, scores.shape[1] - 1)
        own = np.take_along_axis(scores, labels[:, None], axis=1)
        # Of equal scores the first class counts as the larger, as argmax has it.
        before = (scores == own) & (np.arange(scores.shape[1]) < labels[:, None])
        return np.asarray((((scores > own) | before).sum(axis=1) < most) & (labels == wanted), float)

    return score


def _f1(outputs: Any, truth: Truth) -> float:
    labels, first = truth["labels"], _classes(outputs).argmax(axis=1)
    num = int(max(labels.max(), first.max())) + 1
    right = np.bincount(labels[labels == first], minlength=num)
    both = np.bincount(labels, minlength=num) + np.bincount(first, minlength=num)
    known = np.bincount(labels, minlength=num) > 0
    return float((2 * right[known] / both[known]).mean())


def _roc_auc(outputs: Any, truth: Truth) -> float:
    return _mean_over_classes(outputs, truth, _area_in_order)


def _pr_auc(outputs: Any, truth: Truth) -> float:
    return _mean_over_classes(outputs, truth, _average_precision)


def _mean_over_classes(outputs: Any, truth: Truth, area: Callable[[Array, Array], float]) -> float:
    """Return the mean over the classes that some items are of, and others not."""
    scores, labels = _classes(outputs), truth["labels"]
    areas = [area(scores[:, number], labels == number) for number in np.unique(labels)]
    if len(areas) < 2:
        raise SettingsError("all items are of one class: an area below a curve needs two")
    return float(np.mean(areas))


def _area_in_order(scores: Array, positive: Array) -> float:
    """Return the share of pairs of a positive and a negative whose scores are in order; ties count a half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # mean rank of equals
    num = int(positive.sum())
    return float((ranks[positive].sum() - num * (num + 1) / 2) / (num * (len(scores) - num)))


def _average_precision(scores: Array, positive: Array) -> float:
    values, place = np.unique(-scores, return_inverse=True)
    hits = np.bincount(place, positive, len(values)).cumsum()
    taken = np.bincount(place, minlength=len(values)).cumsum()
    return float((np.diff(hits, prepend=0.0) * hits / taken).sum() / positive.sum())


_OF_SETS: Mapping[str, Callable[[Any, Truth], float]] = {"f1": _f1, "roc-auc": _roc_auc, "pr-auc": _pr_auc}


def _detection(thresholds: slice) -> Recount:
    from headrace.validate.box_heads import boxes_found
    from headrace.validate.coco import THRESHOLDS, AveragePrecision  # needs the extra

    def kept(outputs: Any, truth: Truth) -> list[Boxes]:
        return boxes_found(outputs, len(truth["boxes"]))

    def of_draws(found: Sequence[Boxes], truth: Truth) -> OfDraws:
        return AveragePrecision(true_boxes(truth), found, THRESHOLDS[thresholds])

    return Recount(
        needs=("boxes", "classes"),
        kept=kept,
        of_draws=of_draws,
        any_order=True,
        conventions="classes are the numbers that the model gives (torchvision counts from 1), boxes are x1, y1, x2, y2 in "
        "pixels of the model's input",
    )


def _overlap() -> Recount:
    return Recount(
        needs=("mask",),
        kept=lambda outputs, truth: count_pixels(outputs, truth["mask"]),
        of_draws=lambda counted, _: ClassOverlap(counted),
        any_order=False,
        conventions="the numbers of a mask are the places of the classes in the output, counted from 0, and 255 is nobody's",
    )


_RECOUNTED: Mapping[str, Callable[[], Recount]] = {
    "map": lambda: _detection(slice(None)),
    "map50": lambda: _detection(slice(1)),
    "iou": _overlap,
}


def _refuse_at_once(outputs: Any, truth: Truth) -> float:
    raise AssertionError("it is counted by `recount`")


TOP_1 = metric_named("top1")


def _classes(outputs: Any) -> np.ndarray:
    scores = scores_of(outputs)
    if scores is None:
        raise SettingsError("the answers are no scores of classes; score them with your own --metric MODULE:FUNCTION")
    return scores
