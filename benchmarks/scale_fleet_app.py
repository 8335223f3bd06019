"""What a light worker of `benchmarks.scale_fleet` runs: a number is multiplied by a small model, after a wait."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import headrace as hr


class Scale(hr.Module):
    """Multiplies by what its model holds."""

    model = "same.onnx"
    input = hr.BytesInput()
    output = hr.Numbers()

    def __init__(self) -> None:
        self.model = os.environ["FLEET_MODEL"]

    def load(self, context: Any) -> None:
        """Open the model."""
        self.scale = context.open_model()

    def preprocess(self, data: bytes) -> np.ndarray:
        """Return the number: float32 (1,)."""
        return np.frombuffer(data, np.float32)

    def process(self, batch: np.ndarray) -> Sequence[float]:
        """Return the products of float32 (batch, 1)."""
        time.sleep(0.02)
        return [float(value) for value in self.scale(batch)[:, 0]]


pipeline = hr.Pipeline(
    hr.queue(os.environ["FLEET_QUEUE"]), module=Scale(), delivery=hr.jsonl(os.environ["FLEET_RESULTS"])
)
