"""OpenVINO on the CPU: opens ONNX files, and OpenVINO's own XML.

Precision is pinned, never inherited: left alone, OpenVINO computes an fp32 model in bfloat16 on processors with AMX, so one
file answers differently on two machines. `f32` is the default here, and what a model was compiled for is in its variant.

Threads of OpenVINO are not bound to cores: a pipeline's other stages use the same ones.

Calls run side by side only on streams of their own: on one stream they queue, and those of two workers wait for one another. So
a model gets a stream for each worker that shares it; weights are there once.

References:
    https://docs.openvino.ai, "Precision Control" (INFERENCE_PRECISION_HINT) and "CPU Device" (NUM_STREAMS, threads
    of all streams together, pinning).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError, MissingExtra
from headrace.base.protocols import Model, TensorSpec
from headrace.base.settings import build, check
from headrace.engines.model_files import check_openvino
from headrace.engines.onnx_metadata import read_metadata
from headrace.engines.traits import OPENVINO

try:
    import openvino
except ImportError as missing:
    raise MissingExtra("the openvino engine", "openvino") from missing

# The first array that becomes a tensor loads NumPy's interface into OpenVINO's bindings. Where two threads come to that at
# once, they wait for one another for ever: one has the lock of the interface, the other Python's. One thread imports a module.
openvino.Tensor(np.zeros(1, np.float32))

#: Precision in a Plan -> OpenVINO's name of it.
PRECISIONS = ("f32", "bf16", "f16")
#: OpenVINO's names of element types -> ONNX Runtime's, which `TensorSpec` has.
_TYPES = {
    "f32": "float", "f16": "float16", "f64": "double", "bf16": "bfloat16", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "boolean": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoOptions:
    """The Plan's `[model.options]` for this engine."""

    precision: str = "f32"
    """What layers are computed in where the model does not say (a quantized one does): `f32`, `bf16` or `f16`."""
    streams: int | None = None
    """Calls that run side by side; None: as many as workers share the model, while there are cores."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.precision in PRECISIONS, "precision", self.precision, ", ".join(PRECISIONS))
        check(self.streams is None or self.streams >= 1, "streams", self.streams, "a whole number >= 1")


class OpenVinoEngine:
    """Opens what OpenVINO reads."""

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> Model:
        """Return a model compiled for the CPU; see `protocols.Engine.open`."""
        settings = compile_settings(threads=threads, options=options, calls=calls)
        if artifact is None:
            raise EngineError(
                "the openvino engine needs a model file; set the module's `model` or the Plan's model.artifact"
            )
        compiled = compile_model(read_model(artifact), settings)
        if options.get("streams") is not None:
            _check_streams(compiled, options["streams"], threads)
        return OpenVinoModel(compiled, artifact, threads)

    def why_not(self, options: Mapping[str, Any]) -> None:
        """Refuse options that are unknown or impossible; see `protocols.SaysWhyNot`."""
        build(OpenVinoOptions, options, "[model.options]")

    def open_showing(self, artifact: Path, names: Sequence[str], *, threads: int, options: Mapping[str, Any]) -> Model:
        """Return a model with these tensors as outputs too; see `protocols.ShowsTensors`."""
        model = read_model(artifact)
        there = {name for node in model.get_ordered_ops() for port in node.outputs() for name in port.get_names()}
        model.add_outputs([name for name in names if name in there])
        compiled = compile_model(model, compile_settings(threads=threads, options=options))
        return _ShowingModel(compiled, artifact, threads)


def _check_streams(compiled: Any, wanted: int, threads: int) -> None:
    """Raise EngineError where OpenVINO made less of the streams that were asked for: it says nothing itself."""
    streams, together = compiled.get_property("NUM_STREAMS"), compiled.get_property("INFERENCE_NUM_THREADS")
    if streams != wanted or together != wanted * threads:
        raise EngineError(
            f"streams = {wanted} with threads = {threads} needs {wanted * threads} cores, and OpenVINO made of it {streams} "
            f"with {together} threads together: lower model.options.streams or model.threads, or leave streams out"
        )


def compile_settings(*, threads: int, options: Mapping[str, Any], calls: int = 1) -> dict[str, Any]:
    """Return the properties of a model as the pipeline runs it.

    Args:
        threads: Threads inside one call, >= 1.
        options: The Plan's `[model.options]`.
        calls: Workers that share the model.

    Raises:
        SettingsError: If an option is unknown or impossible.
    """
    settings = build(OpenVinoOptions, options, "[model.options]")
    streams = settings.streams or calls
    return {
        "INFERENCE_PRECISION_HINT": settings.precision,
        "INFERENCE_NUM_THREADS": streams * threads,  # of all streams together
        "NUM_STREAMS": streams,
        "ENABLE_CPU_PINNING": False,
    }


@functools.cache
def core() -> Any:
    """Return the one Core of this process, which is never let go.

    OpenVINO gives the calling thread a signal stack of its own and frees it with the last Core, without taking it away from the
    thread: the next signal, such as Ctrl-C, would then crash the process.
    """
    return openvino.Core()


def read_model(artifact: Path) -> Any:
    """Return a model as it stands in its file.

    Raises:
        EngineError: If the file is missing or refused (`model_files`), or OpenVINO cannot read it.
    """
    check_openvino(artifact)
    try:
        return core().read_model(str(artifact))
    except RuntimeError as error:
        raise EngineError(f"model file {artifact} cannot be opened by OpenVINO: {error}") from error


def compile_model(model: Any, settings: Mapping[str, Any]) -> Any:
    """Return a model compiled for the CPU.

    Raises:
        EngineError: If OpenVINO refuses it.
    """
    try:
        return core().compile_model(model, "CPU", dict(settings))
    except RuntimeError as error:
        raise EngineError(f"OpenVINO cannot compile the model with {dict(settings)}: {error}") from error


class OpenVinoModel:
    """A compiled model. Calls may run side by side, each thread with a request of its own."""

    def __init__(self, compiled: Any, artifact: Path, threads: int) -> None:
        self._compiled = compiled
        self._requests = threading.local()
        self.inputs: Sequence[TensorSpec] = tensor_specs(compiled.inputs)
        self.outputs: Sequence[TensorSpec] = tensor_specs(compiled.outputs)
        self.metadata: Mapping[str, str] = read_metadata(artifact)  # OpenVINO keeps none of it
        self.variant: Mapping[str, Any] = {
            "engine": OPENVINO,
            "engine_version": openvino.__version__,
            "artifact": artifact.name,
            "sha256": check_openvino(artifact).sha256(),
            "threads": threads,
            # As OpenVINO reports them: it makes no more of either than there are cores.
            "streams": compiled.get_property("NUM_STREAMS"),
            "threads_of_all_streams": compiled.get_property("INFERENCE_NUM_THREADS"),
            "precision": compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
        }

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return the output array, or {name: array} when the model has several outputs."""
        request = getattr(self._requests, "own", None)
        if request is None:
            request = self._requests.own = self._compiled.create_infer_request()
        feed = dict(batch) if isinstance(batch, Mapping) else [batch]
        try:
            results = request.infer(feed, share_inputs=True)
        except RuntimeError as error:
            raise EngineError(f"OpenVINO refuses a batch: {error}") from error
        arrays = [results[port] for port in self._compiled.outputs]
        names = [output.name for output in self.outputs]
        return arrays[0] if len(arrays) == 1 else dict(zip(names, arrays, strict=True))


class _ShowingModel(OpenVinoModel):
    """Answers by every name of every output: one tensor may have several."""

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return {name: array}."""
        results = self._compiled(dict(batch) if isinstance(batch, Mapping) else [batch])
        return {name: results[port] for port in self._compiled.outputs for name in port.get_names()}


def tensor_specs(ports: Sequence[Any]) -> list[TensorSpec]:
    """Return a model's inputs or outputs, in ONNX Runtime's words; free axes are `?`: OpenVINO does not keep their names."""
    return [
        TensorSpec(
            port.get_any_name(),
            f"tensor({_TYPES.get(port.get_element_type().get_type_name(), port.get_element_type().get_type_name())})",
            tuple("?" if axis.is_dynamic else axis.get_length() for axis in port.get_partial_shape()),
        )
        for port in ports
    ]
