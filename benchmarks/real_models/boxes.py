"""nudenet: a YOLOv8n detector of 320 pixels, whose raw head has 4 coordinates and 18 classes for each of 2,100 places."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import headrace as hr
from benchmarks.real_models.cases import Case
from benchmarks.real_models.items import crops
from benchmarks.real_models.packages import file_of

SIDE = 320


def blob(image: np.ndarray) -> np.ndarray:
    """RGB uint8 -> padded to a square right and below, float32 (3, 320, 320) in BGR, as the package feeds it."""
    height, width = image.shape[:2]
    whole = max(height, width)
    square = cv2.copyMakeBorder(image, 0, whole - height, 0, whole - width, cv2.BORDER_CONSTANT)
    return cv2.dnn.blobFromImage(square, 1 / 255.0, (SIDE, SIDE), (0, 0, 0), swapRB=True, crop=False)[0]


def boxes_of(output: np.ndarray, size: tuple[int, int]) -> list[dict[str, Any]]:
    """(22, 2100) of one image of that (height, width) -> its boxes."""
    height, width = size
    scale = max(height, width) / SIDE
    scores, classes = output[4:].max(0), output[4:].argmax(0)
    kept = scores >= 0.2
    x, y, w, h = output[:4, kept] * scale
    x, y = np.clip(x - w / 2, 0, width), np.clip(y - h / 2, 0, height)
    w, h = np.minimum(w, width - x), np.minimum(h, height - y)
    best = hr.nms(np.stack([x, y, x + w, y + h], 1), scores[kept], score_threshold=0.25, iou_threshold=0.45)
    return [
        {"class": int(classes[kept][i]), "score": float(scores[kept][i]), "box": [float(v[i]) for v in (x, y, w, h)]}
        for i in best
    ]


class Detector(hr.Module):
    """Hands the image's size past the model."""

    model = file_of("nudenet", "320n.onnx")
    input = hr.ImageInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()

    def preprocess(self, image: np.ndarray) -> Any:
        return blob(image), image.shape[:2]

    def process(self, batch: Any) -> list[Any]:
        outputs = self.net(np.stack([image for image, _ in batch]))
        return [(output, size) for output, (_, size) in zip(outputs, batch, strict=True)]

    def postprocess(self, result: Any) -> Any:
        return boxes_of(*result)


pipeline = hr.Pipeline(
    source=hr.folder(os.environ.get("REAL_MODELS_ITEMS", ".")), module=Detector(), delivery=hr.jsonl("results.jsonl"),
    name="boxes",
)  # fmt: skip


def own(files: Sequence[Path]) -> dict[str, Any]:
    """Ask the package."""
    from nudenet import NudeDetector
    from nudenet.nudenet import __labels as labels

    detector = NudeDetector()
    found = {}
    for file in files:
        boxes = detector.detect(str(file))
        found[file.name] = [{**one, "class": labels.index(one["class"])} for one in boxes]
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Whether the same boxes were found, to the pixel that the package rounds to."""
    return len(ours) == len(theirs) and all(
        a["class"] == b["class"]
        and abs(a["score"] - b["score"]) < 1e-3
        and np.abs(np.subtract(a["box"], b["box"])).max() <= 1
        for a, b in zip(_sorted(ours), _sorted(theirs), strict=True)
    )


def _sorted(boxes: Any) -> Any:
    return sorted(boxes, key=lambda one: -one["score"])


def inputs(files: Sequence[Path]) -> np.ndarray:
    """(items, 3, 320, 320)."""
    return np.stack([blob(cv2.imread(str(file))[:, :, ::-1]) for file in files])


CASE = Case(models={"nudenet": Detector.model}, make_items=crops, own=own, same=same, inputs=inputs)
