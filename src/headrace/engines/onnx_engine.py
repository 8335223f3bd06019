"""ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from headrace.base.errors import EngineError
from headrace.base.protocols import Model, TensorSpec
from headrace.base.settings import build, check
from headrace.engines.model_files import check_onnx


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """The Plan's `[model.options]` for this engine."""

    inter_op_threads: int = 1
    """Threads that run independent nodes side by side."""
    spin: bool = False
    """Whether idle threads inside a call burn CPU while they wait; takes cores from other stages."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.inter_op_threads >= 1, "inter_op_threads", self.inter_op_threads, "a whole number >= 1")


class OnnxEngine:
    """Opens ONNX files."""

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any]) -> Model:
        """Return a session on the CPU; see `protocols.Engine.open`."""
        session_options = make_session_options(threads=threads, options=options)
        if artifact is None:
            raise EngineError(
                "the onnx engine needs a model file; set the module's `model` or the Plan's model.artifact"
            )
        return OnnxModel(open_session(artifact, session_options), artifact, threads)


def make_session_options(*, threads: int, options: Mapping[str, Any]) -> Any:
    """Return ONNX Runtime's options of a session as the pipeline runs it, to be changed further by the caller.

    Args:
        threads: Threads inside one call, >= 1.
        options: The Plan's `[model.options]`.

    Raises:
        SettingsError: If an option is unknown or impossible.
    """
    settings = build(OnnxOptions, options, "[model.options]")
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = threads
    session_options.inter_op_num_threads = settings.inter_op_threads
    if settings.inter_op_threads > 1:
        session_options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL  # else they are not used
    for pool in ("intra_op", "inter_op"):
        session_options.add_session_config_entry(f"session.{pool}.allow_spinning", "1" if settings.spin else "0")
    session_options.log_severity_level = 3
    return session_options


def open_session(artifact: Path, session_options: Any) -> Any:
    """Return a session on the CPU.

    Raises:
        EngineError: If the file is missing or refused (`model_files`), or ONNX Runtime cannot open it.
    """
    check_onnx(artifact)
    try:
        return onnxruntime.InferenceSession(str(artifact), session_options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises its own types, none of them public
        raise EngineError(f"model file {artifact} cannot be opened by ONNX Runtime: {error}") from error


class OnnxModel:
    """An open session. Calls may run side by side."""

    def __init__(self, session: Any, artifact: Path, threads: int) -> None:
        self._session = session
        self.inputs: Sequence[TensorSpec] = tensor_specs(session.get_inputs())
        self.outputs: Sequence[TensorSpec] = tensor_specs(session.get_outputs())
        self._output_names = [output.name for output in self.outputs]
        self._input_name = self.inputs[0].name
        self.variant: Mapping[str, Any] = {
            "engine": "onnx",
            "engine_version": onnxruntime.__version__,
            "artifact": artifact.name,
            "sha256": check_onnx(artifact).sha256(),
            "threads": threads,
            "provider": session.get_providers()[0],
        }
        metadata = session.get_modelmeta().custom_metadata_map
        self.metadata: Mapping[str, str] = dict(metadata)

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return the output array, or {name: array} when the model has several outputs."""
        feed = batch if isinstance(batch, Mapping) else {self._input_name: batch}
        results = self._session.run(self._output_names, feed)
        return results[0] if len(results) == 1 else dict(zip(self._output_names, results, strict=True))


def tensor_specs(nodes: Sequence[Any]) -> list[TensorSpec]:
    """Return a session's inputs or outputs; ONNX Runtime names types as `tensor(float)`."""
    return [
        TensorSpec(node.name, node.type, tuple(axis if axis is not None else "?" for axis in node.shape))
        for node in nodes
    ]
