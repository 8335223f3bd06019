"""Vectorised postprocessing."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np


def nms(
    boxes: np.ndarray,
    scores: np.ndarray,
    *,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.5,
    classes: np.ndarray | None = None,
    max_boxes: int = 300,
) -> np.ndarray:
    """Return the indices of the boxes that remain after non-maximum suppression, best first.

    Args:
        boxes: float (boxes, 4): left, top, right, bottom.
        scores: float (boxes,), 0 to 1.
        score_threshold: Boxes that score less are dropped first.
        iou_threshold: Of two boxes that overlap more than this (intersection over union), the better stays.
        classes: int (boxes,): boxes of different classes never suppress each other; None: all are of one class.
        max_boxes: The most boxes to return.

    Returns:
        int64 (remaining,).

    Raises:
        ValueError: If the arrays' shapes do not fit together.

    References:
        Runs in OpenCV's `dnn.NMSBoxes` / `NMSBoxesBatched`: C++, no loop in Python.
    """
    if boxes.ndim != 2 or boxes.shape[1:] != (4,) or scores.shape != (len(boxes),):
        raise ValueError(f"expected boxes (n, 4) and scores (n,), got {boxes.shape} and {scores.shape}")
    if classes is not None and classes.shape != scores.shape:
        raise ValueError(f"expected classes (n,) as scores {scores.shape}, got {classes.shape}")
    candidates = np.flatnonzero(scores >= score_threshold)
    if not len(candidates):
        return np.empty(0, np.int64)
    candidates = candidates[np.argsort(-scores[candidates], kind="stable")]
    corners = boxes[candidates].astype(np.float64)
    if classes is not None:
        corners -= corners.min()  # OpenCV sets classes apart by what it adds to coordinates; negative ones would meet
    rectangles = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    # Ranks in place of scores: OpenCV rounds those to float32 and drops what only equals the threshold.
    ranks = np.arange(len(candidates), 0, -1, dtype=np.float32)
    dnn: Any = cv2.dnn  # its stubs ask for lists, which would cost a copy per box
    if classes is None:
        kept = dnn.NMSBoxes(rectangles, ranks, 0.0, iou_threshold)
    else:
        kept = dnn.NMSBoxesBatched(rectangles, ranks, classes[candidates].astype(np.int32), 0.0, iou_threshold)
    best_first = np.sort(np.asarray(kept, np.int64).reshape(-1))[:max_boxes]
    return np.asarray(candidates[best_first], np.int64)
