"""An engine for models that are one matrix, in JSON: `{"weights": [[0.5, 1.0], [2.0, 0.0]]}`, shape (inputs, outputs)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.base.protocols import TensorSpec
from headrace.base.settings import unknown_key
from headrace.engines import EngineTraits


class LinearEngine:
    """Opens `.linear` files."""

    traits = EngineTraits(title="the linear engine", reads=(".linear",))

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> LinearModel:
        """Read the matrix; there are no options, and NumPy takes the threads that it wants."""
        for key in options:
            raise unknown_key(key, "[model.options]", ())
        if artifact is None:
            raise EngineError("the linear engine needs a model file")
        data = artifact.read_bytes()
        try:
            return LinearModel(np.array(json.loads(data)["weights"], np.float32, ndmin=2), artifact.name, data)
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{artifact} is no linear model: {type(error).__name__}: {error}") from error


class LinearModel:
    """Multiplies; thread-safe."""

    metadata: Mapping[str, str] = {}

    def __init__(self, weights: np.ndarray, name: str, data: bytes) -> None:
        self._weights = weights
        self.inputs = [TensorSpec("x", "float32", ("batch", weights.shape[0]))]
        self.outputs = [TensorSpec("y", "float32", ("batch", weights.shape[1]))]
        self.variant: Mapping[str, Any] = {
            "engine": "linear",
            "artifact": name,
            "sha256": hashlib.sha256(data).hexdigest(),
        }

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray:
        """Return float32 (batch, outputs) of float32 (batch, inputs)."""
        x = batch["x"] if isinstance(batch, Mapping) else batch
        return np.asarray(x @ self._weights)
