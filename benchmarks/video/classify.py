"""The module with which headrace does what the loops do."""

from typing import Any

import numpy as np

import headrace as hr


class Classify(hr.Module):
    """Says the label of a frame."""

    input = hr.ImageInput()
    model = "model.onnx"  # the Plan names another

    def load(self, context: Any) -> None:
        """Open the model."""
        self._model = context.open_model()

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Return float32 (3, 224, 224)."""
        return hr.images.normalize(image)

    def process(self, batch: np.ndarray) -> list[int]:
        """Return labels."""
        return [int(label) for label in self._model(batch).argmax(axis=1)]
