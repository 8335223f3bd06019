"""The module of the demo: what a user writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from headrace import samples
from headrace.stages import images
from headrace.stages.inputs import ImageInput
from headrace.stages.module import Module, ModuleContext


class Scenes(Module):
    """Name the photograph that a crop was cut from."""

    model = Path(samples.__file__).parent / "models" / "scenes.onnx"
    input = ImageInput(short_side=256, crop=224)

    def load(self, context: ModuleContext) -> None:
        """Open the model that the Plan names; its file carries the names of the scenes."""
        self.scenes = context.open_model()
        # An emulated device opens no file that could carry names; it always answers 0.
        self.names = json.loads(self.scenes.metadata.get("names", '["emulated"]'))

    def preprocess(self, value: np.ndarray) -> np.ndarray:
        """Return float32 (3, 224, 224)."""
        return images.normalize(value)

    def process(self, batch: np.ndarray) -> list[dict[str, Any]]:
        """Return the name and the probability of each image's scene."""
        logits = self.scenes(batch)
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = exponents / exponents.sum(axis=1, keepdims=True)
        return [
            {"scene": self.names[best], "probability": float(row[best])}
            for row, best in zip(probabilities, probabilities.argmax(axis=1), strict=True)
        ]
