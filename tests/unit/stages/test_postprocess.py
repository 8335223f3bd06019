"""Non-maximum suppression, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.postprocess import nms


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two boxes."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(width * height / (sum(areas) - width * height))


def reference(
    boxes: np.ndarray,
    scores: np.ndarray,
    score_threshold: float,
    iou_threshold: float,
    classes: np.ndarray | None,
    max_boxes: int = 300,
) -> list[int]:
    """The textbook's loop: from the best down, keep what no better box of its class covers."""
    kept: list[int] = []
    for index in sorted(range(len(scores)), key=lambda index: -scores[index]):
        rivals = [other for other in kept if classes is None or classes[other] == classes[index]]
        if scores[index] >= score_threshold and all(
            overlap(boxes[index], boxes[other]) <= iou_threshold for other in rivals
        ):
            kept.append(index)
    return kept[:max_boxes]


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 60),
    num_classes=st.one_of(st.none(), st.integers(1, 5)),
    scale=st.sampled_from([1.0, 640.0, 4000.0]),
    shift=st.sampled_from([0.0, -0.7, 0.5]),
    threshold=st.sampled_from([0.0, 0.25, 0.8]),
    iou=st.sampled_from([0.1, 0.45, 0.7]),
)
def test_nms_is_that_of_the_textbook(
    seed: int, count: int, num_classes: int | None, scale: float, shift: float, threshold: float, iou: float
) -> None:
    """The same boxes in the same order: in pixels or parts of the image, beyond its edges too, with and without classes."""
    rng = np.random.default_rng(seed)
    corner, size = rng.random((count, 2)), rng.uniform(0.05, 0.6, (count, 2))
    boxes = (np.concatenate([corner, corner + size], axis=1) + shift) * scale
    scores = rng.random(count)
    classes = None if num_classes is None else rng.integers(0, num_classes, count)
    kept = nms(boxes, scores, score_threshold=threshold, iou_threshold=iou, classes=classes)
    assert kept.tolist() == reference(boxes, scores, threshold, iou, classes)
    assert kept.dtype == np.int64


TWO = np.array([[0, 0, 10, 10], [1, 0, 11, 10]], np.float32)


def test_the_better_of_two_stays() -> None:
    """Of two boxes that overlap, the one that scores more remains."""
    assert nms(TWO, np.array([0.5, 0.9], np.float32)).tolist() == [1]


def test_classes_do_not_suppress_each_other() -> None:
    """Boxes of two classes remain though they overlap."""
    assert nms(TWO, np.array([0.5, 0.9]), classes=np.array([3, 0])).tolist() == [1, 0]


def test_boxes_far_apart_remain() -> None:
    """Without overlap nothing is suppressed, and the best comes first."""
    boxes = np.array([[0, 0, 1, 1], [5, 5, 6, 6], [9, 0, 10, 1]], np.float64)
    assert nms(boxes, np.array([0.3, 0.9, 0.6])).tolist() == [1, 2, 0]


def test_a_score_of_the_threshold_stays() -> None:
    """Only what scores less is dropped, in single precision too."""
    scores = np.array([0.3, 0.2999], np.float32)
    boxes = np.array([[0, 0, 1, 1], [5, 5, 6, 6]], np.float32)
    assert nms(boxes, scores, score_threshold=float(scores[0])).tolist() == [0]


def test_an_overlap_of_the_threshold_stays() -> None:
    """Only what overlaps more is suppressed: two halves of three overlap by a third."""
    boxes = np.array([[0, 0, 2, 1], [1, 0, 3, 1]], np.float64)
    scores = np.array([0.9, 0.8])
    assert nms(boxes, scores, iou_threshold=0.34).tolist() == [0, 1]
    assert nms(boxes, scores, iou_threshold=0.33).tolist() == [0]


def test_equal_scores_keep_their_order() -> None:
    """Of two equal boxes the first stays, every time."""
    boxes = np.repeat(TWO[:1], 5, axis=0)
    assert nms(boxes, np.full(5, 0.5)).tolist() == [0]


def test_scores_that_single_precision_confuses() -> None:
    """Scores are compared as they are, not rounded."""
    assert nms(TWO.astype(np.float64), np.array([0.9, 0.9 + 1e-12])).tolist() == [1]


def test_max_boxes() -> None:
    """No more than asked for are returned: the best."""
    boxes = np.array([[i, 0, i + 0.5, 1] for i in range(100)], np.float64)
    scores = np.linspace(0.3, 0.9, 100)
    assert nms(boxes, scores, max_boxes=3).tolist() == [99, 98, 97]


@pytest.mark.parametrize("classes", [None, np.empty(0, np.int64)])
def test_no_boxes(classes: np.ndarray | None) -> None:
    """Nothing in, nothing out."""
    kept = nms(np.empty((0, 4)), np.empty(0), classes=classes)
    assert (kept.shape, kept.dtype) == ((0,), np.int64)


def test_nothing_scores_enough() -> None:
    """Boxes that all score too little leave nothing."""
    assert nms(TWO, np.array([0.1, 0.2])).tolist() == []


@pytest.mark.parametrize(
    ("boxes", "scores", "classes", "message"),
    [
        (np.zeros((3, 5)), np.zeros(3), None, r"got \(3, 5\) and \(3,\)"),
        (np.zeros(4), np.zeros(1), None, r"got \(4,\) and \(1,\)"),
        (np.zeros((3, 4)), np.zeros(2), None, r"got \(3, 4\) and \(2,\)"),
        (np.zeros((3, 4)), np.zeros((3, 1)), None, r"got \(3, 4\) and \(3, 1\)"),
        (np.zeros((3, 4)), np.ones(3), np.zeros(2, int), r"as scores \(3,\), got \(2,\)"),
    ],
)
def test_shapes_that_do_not_fit(
    boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray | None, message: str
) -> None:
    """Arrays that do not belong together are the caller's mistake, told with their shapes."""
    with pytest.raises(ValueError, match=message):
        nms(boxes, scores, classes=classes)
