"""Which detections are right, by pycocotools: the one module that knows it.

It matches: per image and class, detections in the order of their scores each take the free box that they overlap most, at every
threshold; of an image at most 100 of a class count. That is done once for all images. What follows from it for any draw of the
images is counted here, as the library counts it, with an image's number in place of its copies; a test holds the two against
each other.

References:
    T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014; its evaluation: precision at 101 recalls.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.errors import MissingExtra
from headrace.validate.detections import Boxes

try:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
except ImportError as missing:
    raise MissingExtra("--metric map", "detection") from missing

Array = np.ndarray

#: Overlaps from which on a detection is right: 0.5, 0.55, ..., 0.95.
THRESHOLDS = np.linspace(0.5, 0.95, 10)
#: Of one class in an image, those with the highest scores: the library counts each class by itself.
MOST_DETECTIONS = 100
_RECALLS = np.linspace(0.0, 1.0, 101)
_ANY_AREA = [0.0, 1e10]


@dataclass(frozen=True, slots=True)
class _Matched:
    """The detections of one class in all images, highest score first."""

    image: Array
    """(detections,) the place of the image that each is in."""
    right: Array
    """(thresholds, detections) bool."""
    num_true: Array
    """(images,) boxes that there are."""

    def average_precision(self, counts: Array) -> float:
        """Return the mean over thresholds and recalls of the precision; NaN if no box counts.

        Args:
            counts: (images,) how often each image is there.
        """
        total = counts @ self.num_true
        if not total:
            return float("nan")
        if not len(self.image):
            return 0.0
        weights = counts[self.image].astype(float)
        hits = (self.right * weights).cumsum(axis=1)
        precision = hits / np.maximum(weights.cumsum(), 1.0)
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # at this recall or any larger one
        reached = [np.searchsorted(recall, _RECALLS) for recall in hits / total]
        padded = np.pad(best, ((0, 0), (0, 1)))  # a recall that is not reached has precision 0
        return float(np.mean([row[places] for row, places in zip(padded, reached, strict=True)]))


class AveragePrecision:
    """COCO's average precision of each class, of any draw of the images.

    Args:
        truth: What is in each image; scores are not looked at.
        found: What a model found in each.
        thresholds: Overlaps (intersection over union) from which on a detection is right.

    Attributes:
        classes: Those of which there are boxes: others have no average precision.
    """

    def __init__(self, truth: Sequence[Boxes], found: Sequence[Boxes], thresholds: Array = THRESHOLDS) -> None:
        self.classes = np.unique(np.concatenate([one.classes for one in truth]))
        evaluation = _evaluation(truth, found, self.classes, thresholds)
        with _quiet():
            evaluation.evaluate()
        per_class = np.array([*evaluation.evalImgs, None], object)[:-1].reshape(len(self.classes), len(truth))
        self._matched = [_match_class(images, len(thresholds)) for images in per_class]

    def __call__(self, counts: Array) -> Array:
        """Return (classes,) average precisions from 0 to 1, NaN where no box counts; see `_Matched.average_precision`."""
        return np.array([one.average_precision(counts) for one in self._matched])

    def images_with(self, place: int) -> Array:
        """Return the places of the images with boxes of a class."""
        return np.flatnonzero(self._matched[place].num_true)


def _evaluation(truth: Sequence[Boxes], found: Sequence[Boxes], classes: Array, thresholds: Array) -> Any:
    """Return the library's evaluation, set up: one range of areas, no crowds."""
    evaluation = COCOeval(_dataset(truth, classes), _dataset(found, classes), "bbox")
    evaluation.params.iouThrs = thresholds
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [_ANY_AREA], ["all"]
    evaluation.params.maxDets = [MOST_DETECTIONS]
    return evaluation


def _dataset(images: Sequence[Boxes], classes: Array) -> Any:
    dataset = COCO()
    dataset.dataset = {
        "images": [{"id": number} for number in range(len(images))],
        "categories": [{"id": int(number)} for number in classes],
        "annotations": list(_annotations(images, set(classes.tolist()))),
    }
    with _quiet():
        dataset.createIndex()
    return dataset


def _annotations(images: Sequence[Boxes], classes: set[int]) -> Iterator[Mapping[str, Any]]:
    identity = 0
    for number, image in enumerate(images):
        sizes = (image.boxes[:, 2:] - image.boxes[:, :2]).clip(0)
        boxes = np.concatenate([image.boxes[:, :2], sizes], axis=1).tolist()
        for box, class_, score in zip(boxes, image.classes.tolist(), image.scores.tolist(), strict=True):
            if class_ in classes:
                identity += 1  # from 1: 0 means not matched
                yield {
                    "id": identity, "image_id": number, "category_id": class_, "bbox": box, "score": score,
                    "area": box[2] * box[3], "iscrowd": 0,
                }  # fmt: skip


def _match_class(images: Iterable[Any], num_thresholds: int) -> _Matched:
    """Return what the library found for one class; it says nothing of images with neither boxes nor detections."""
    every = list(images)
    told = [(place, image) for place, image in enumerate(every) if image is not None]
    num_true = np.zeros(len(every))
    for place, image in told:
        num_true[place] = len(image["gtIds"])
    where = np.concatenate([np.full(len(image["dtIds"]), place) for place, image in told]).astype(int)
    scores = np.concatenate([image["dtScores"] for _, image in told])
    right = np.concatenate([image["dtMatches"] for _, image in told], axis=1).reshape(num_thresholds, -1) > 0
    order = np.argsort(-scores, kind="stable")
    return _Matched(where[order], right[:, order], num_true)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the library prints from stdout, which is for results."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
