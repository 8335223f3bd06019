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
        max_boxes: At most so many are returned.

    Returns:
        int64 (remaining,).

    Raises:
        ValueError: If the arrays' shapes do not fit together.

    References:
        Runs in OpenCV's `dnn.NMSBoxes` / `NMSBoxesBatched`: C++, no loop in Python.
    """
    if boxes.ndim != 2 or boxes.shape[1:] != (4,) or scores.shape != (len(boxes),):
        raise ValueError(f"expected boxes (n, 4) and scores (n,), got {boxes.shape} and {scores.shape}")
    candidates = np.flatnonzero(scores >= score_threshold)
    if not len(candidates):
        return np.empty(0, np.int64)
    corners = boxes[candidates].astype(np.float64)
    rectangles = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    kept_scores = scores[candidates].astype(np.float32)
    dnn: Any = cv2.dnn  # its stubs ask for lists, which would cost a copy per box
    if classes is None:
        kept = dnn.NMSBoxes(rectangles, kept_scores, score_threshold, iou_threshold)
    else:
        kept = dnn.NMSBoxesBatched(
            rectangles, kept_scores, classes[candidates].astype(np.int32), score_threshold, iou_threshold
        )
    indices = candidates[np.asarray(kept, np.int64).reshape(-1)]
    best_first = np.argsort(-scores[indices], kind="stable")[:max_boxes]
    return np.asarray(indices[best_first], np.int64)
