"""An engine for ONNX models that are too large for one device: the graph is cut at one tensor, and each half has a device.

    [model]
    engine = "halves"
    instances = 2
    options = { at = "/layer3/Relu_output_0", provider = "cuda", devices = [0, 1] }

With two instances one batch is in the first half while the one before is in the second, so that both devices work. Engines
made for it cut better, into more parts and within layers (TensorRT-LLM, vLLM, DeepSpeed); an adapter has the same method.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx.utils
import onnxruntime

from headrace.base.errors import EngineError
from headrace.base.protocols import TensorSpec
from headrace.base.settings import build, check
from headrace.engines import EngineTraits
from headrace.engines.model_files import check_onnx

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesOptions:
    """The Plan's `[model.options]` for this engine."""

    at: str = ""
    """The tensor that alone goes from the first half to the second."""
    provider: str = "cpu"
    """`cpu`: both halves on the cores, to try it; `cuda`."""
    devices: tuple[int, ...] = (0, 1)
    """Numbers of the devices of the halves."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(bool(self.at), "at", self.at, "the name of a tensor of the graph")
        check(self.provider in _PROVIDERS, "provider", self.provider, ", ".join(_PROVIDERS))
        check(len(self.devices) == 2, "devices", list(self.devices), "two numbers")


class HalvesEngine:
    """Opens ONNX files on two devices."""

    traits = EngineTraits(title="ONNX Runtime on two devices", packages=("onnxruntime",))

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> HalvesModel:
        """Cut the graph, and open each part on its device."""
        settings = build(HalvesOptions, options, "[model.options]")
        if artifact is None:
            raise EngineError("the halves engine needs a model file")
        files = check_onnx(artifact)
        try:
            sessions = [
                _session(part, settings.provider, device, threads)
                for part, device in zip(_cut(artifact, settings.at), settings.devices, strict=True)
            ]
        except Exception as error:  # onnx and ONNX Runtime raise their own types
            raise EngineError(
                f"{artifact} cannot be cut at {settings.at!r}: {error}; expected a tensor that alone leads from the "
                "inputs to the outputs"
            ) from error
        return HalvesModel(sessions, {"artifact": files.artifact.name, "sha256": files.sha256(), "at": settings.at})


def _cut(artifact: Path, at: str) -> list[bytes]:
    model = onnx.shape_inference.infer_shapes(onnx.load(str(artifact)))
    weights = {one.name for one in model.graph.initializer}
    inputs = [one.name for one in model.graph.input if one.name not in weights]
    outputs = [one.name for one in model.graph.output]
    extractor = onnx.utils.Extractor(model)
    return [
        extractor.extract_model(taken, given).SerializeToString() for taken, given in ((inputs, [at]), ([at], outputs))
    ]


def _session(part: bytes, provider: str, device: int, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    settings = {"device_id": device} if provider == "cuda" else {}
    session = onnxruntime.InferenceSession(part, options, providers=[(_PROVIDERS[provider], settings)])
    if session.get_providers()[0] != _PROVIDERS[provider]:  # ONNX Runtime takes the CPU without a word
        raise RuntimeError(f"{provider} could not be started")
    return session


class HalvesModel:
    """Runs one half after the other; thread-safe, and each half takes one call at a time."""

    metadata: Mapping[str, str] = {}

    def __init__(self, sessions: list[Any], variant: Mapping[str, Any]) -> None:
        self._halves = [(session, threading.Lock()) for session in sessions]
        self.inputs = [TensorSpec(one.name, one.type, tuple(one.shape)) for one in sessions[0].get_inputs()]
        self.outputs = [TensorSpec(one.name, one.type, tuple(one.shape)) for one in sessions[-1].get_outputs()]
        self.variant: Mapping[str, Any] = {"engine": "halves", **variant}

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return the output array, or {name: array} when the model has several outputs."""
        feed = batch if isinstance(batch, Mapping) else {self.inputs[0].name: batch}
        for session, turn in self._halves:
            names = [one.name for one in session.get_outputs()]
            with turn:
                feed = dict(zip(names, session.run(names, dict(feed)), strict=True))
        return next(iter(feed.values())) if len(feed) == 1 else feed
