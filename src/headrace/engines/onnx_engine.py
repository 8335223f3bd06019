"""ONNX Runtime on the CPU, or by TensorRT or CUDA where a GPU and a build of ONNX Runtime for it are there.

A provider that is asked for is used or refused, never replaced: ONNX Runtime itself goes over to the CPU without a word when a
library of TensorRT is missing.

References:
    ONNX Runtime, "Execution Providers" (TensorRT: engines are built at opening, for minutes, and kept in `engine_cache`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnxruntime

from headrace.base.errors import EngineError
from headrace.base.protocols import Model, TensorSpec
from headrace.base.settings import build, check
from headrace.engines.model_files import ModelFiles, check_onnx
from headrace.engines.traits import ONNX, check_device


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """The Plan's `[model.options]` for this engine."""

    inter_op_threads: int = 1
    """Threads that run independent nodes side by side."""
    spin: bool = False
    """Whether idle threads inside a call burn CPU while they wait; takes cores from other stages."""
    provider: str = "cpu"
    """`cpu`, `cuda` or `tensorrt`."""
    device: int = 0
    """Number of the GPU, as CUDA counts."""
    graph_optimization: str = "all"
    """What ONNX Runtime may change in the graph: `all`, `extended` (no other layouts), `basic` (standard operators), `off`."""
    engine_cache: str = ""
    """Folder in which TensorRT keeps the engines that it builds, for this GPU; empty: they are built at every opening."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.inter_op_threads >= 1, "inter_op_threads", self.inter_op_threads, "a whole number >= 1")
        check(self.provider in PROVIDERS, "provider", self.provider, ", ".join(PROVIDERS))
        check_device(self.device, self.provider)
        levels = ", ".join(_LEVELS)
        check(self.graph_optimization in _LEVELS, "graph_optimization", self.graph_optimization, levels)


#: Graph optimization in a Plan -> ONNX Runtime's level of it.
_LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
#: Provider in a Plan -> ONNX Runtime's name of it.
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


class OnnxEngine:
    """Opens ONNX files."""

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> Model:
        """Return a model of one session, or of several; see `protocols.Engine.open`.

        The threads inside calls belong to a session: calls of one session that run side by side would share them. Where a call
        has none but the caller's own, one session is enough, and has the weights once.
        """
        session_options = make_session_options(threads=threads, options=options)
        if artifact is None:
            raise EngineError(
                "the onnx engine needs a model file; set the module's `model` or the Plan's model.artifact"
            )
        settings = build(OnnxOptions, options, "[model.options]")
        files = check_onnx(artifact)
        num_sessions = calls if threads > 1 and settings.provider == "cpu" else 1
        sessions = [_session(artifact, session_options, settings) for _ in range(num_sessions)]
        return OnnxModel(sessions, files, threads)

    def why_not(self, options: Mapping[str, Any]) -> str | None:
        """Return why a provider cannot be used here; see `protocols.SaysWhyNot`."""
        return why_not(build(OnnxOptions, options, "[model.options]").provider)

    def open_showing(self, artifact: Path, names: Sequence[str], *, threads: int, options: Mapping[str, Any]) -> Model:
        """Return a session that fuses nothing; see `protocols.ShowsTensors`."""
        import onnx

        files = check_onnx(artifact)
        session_options = onnxruntime.SessionOptions()
        session_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session_options.log_severity_level = 4
        try:
            model = onnx.load(str(artifact))
            known = {value.name for value in model.graph.output}
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), session_options, providers=[PROVIDERS["cpu"]]
            )
        except Exception as error:  # ONNX Runtime and protobuf raise their own types
            raise EngineError(f"{artifact} cannot be opened with its layers as outputs: {error}") from error
        return OnnxModel([session], files, threads)


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
    session_options.graph_optimization_level = _LEVELS[settings.graph_optimization]
    for pool in ("intra_op", "inter_op"):
        session_options.add_session_config_entry(f"session.{pool}.allow_spinning", "1" if settings.spin else "0")
    session_options.log_severity_level = 4
    return session_options


def open_session(artifact: Path, session_options: Any, settings: OnnxOptions | None = None) -> Any:
    """Return a session, on the CPU unless the settings say otherwise.

    Raises:
        EngineError: If the file is missing or refused (`model_files`), ONNX Runtime cannot open it, or has no such provider.
    """
    check_onnx(artifact)
    return _session(artifact, session_options, settings or OnnxOptions())


def _session(artifact: Path, session_options: Any, settings: OnnxOptions) -> Any:
    """Return a session of a file that has passed the gate."""
    wanted = PROVIDERS[settings.provider]
    missing = why_not(settings.provider)
    if missing is not None:
        raise EngineError(missing)
    try:
        session = onnxruntime.InferenceSession(str(artifact), session_options, providers=_providers(settings))
    except Exception as error:  # ONNX Runtime raises its own types, none of them public
        raise EngineError(f"model file {artifact} cannot be opened by ONNX Runtime: {error}") from error
    used = session.get_providers()[0]
    if used != wanted:
        raise EngineError(
            f"{settings.provider} is not available here, because ONNX Runtime could not start it and took {used} instead: its "
            f"libraries or the GPU's driver are missing or of other versions; {_INSTEAD}"
        )
    return session


def why_not(provider: str) -> str | None:
    """Return why a provider cannot be used here; None if this ONNX Runtime was built with it."""
    built_with = onnxruntime.get_available_providers()
    if PROVIDERS[provider] in built_with:
        return None
    return (
        f"{provider} is not available here, because onnxruntime {onnxruntime.__version__} has no {PROVIDERS[provider]}; it has "
        f"{', '.join(built_with)}. On a machine with an NVIDIA GPU: pip install onnxruntime-gpu, and TensorRT where it is "
        f"wanted; {_INSTEAD}"
    )


_INSTEAD = 'else model.options.provider = "cpu"'


def _providers(settings: OnnxOptions) -> list[Any]:
    """Return the providers in the order in which nodes are offered to them; what TensorRT does not take goes to CUDA."""
    cuda, tensorrt = PROVIDERS["cuda"], PROVIDERS["tensorrt"]
    if settings.provider == "cpu":
        return [PROVIDERS["cpu"]]
    if settings.provider == "cuda":
        return [(cuda, {"device_id": settings.device})]
    options: dict[str, Any] = {"device_id": settings.device}
    if settings.engine_cache:
        options |= {"trt_engine_cache_enable": True, "trt_engine_cache_path": settings.engine_cache}
    return [(tensorrt, options), (cuda, {"device_id": settings.device})]


class OnnxModel:
    """Open sessions of one file. Calls may run side by side; with several sessions each call has one to itself."""

    def __init__(self, sessions: Sequence[Any], files: ModelFiles, threads: int) -> None:
        session = self._session = sessions[0]
        self._idle: SimpleQueue[Any] | None = None
        if len(sessions) > 1:
            self._idle = SimpleQueue()
            for one in sessions:
                self._idle.put(one)
        self.inputs: Sequence[TensorSpec] = tensor_specs(session.get_inputs())
        self.outputs: Sequence[TensorSpec] = tensor_specs(session.get_outputs())
        self._output_names = [output.name for output in self.outputs]
        self._input_name = self.inputs[0].name
        self.variant: Mapping[str, Any] = {
            "engine": ONNX,
            "engine_version": onnxruntime.__version__,
            "artifact": files.artifact.name,
            "sha256": files.sha256(),
            "threads": threads,
            "sessions": len(sessions),
            "provider": session.get_providers()[0],
        }
        metadata = session.get_modelmeta().custom_metadata_map
        self.metadata: Mapping[str, str] = dict(metadata)
        self._sessions = tuple(sessions) if self.variant["provider"] == PROVIDERS["cpu"] else ()
        self._to_shrink: set[Any] = set()

    def __call__(self, batch: np.ndarray | Mapping[str, np.ndarray]) -> Any:
        """Return the output array, or {name: array} when the model has several outputs."""
        feed = batch if isinstance(batch, Mapping) else {self._input_name: batch}
        results = self._run(self._session, feed) if self._idle is None else self._run_idle(self._idle, feed)
        return results[0] if len(results) == 1 else dict(zip(self._output_names, results, strict=True))

    def _run_idle(self, idle: SimpleQueue[Any], feed: Any) -> Any:
        session = idle.get()
        try:
            return self._run(session, feed)
        finally:
            idle.put(session)

    def _run(self, session: Any, feed: Any) -> Any:
        if session not in self._to_shrink:
            return session.run(self._output_names, feed)
        self._to_shrink.discard(session)
        return session.run(self._output_names, feed, _shrinking())

    def give_back_buffers(self) -> None:
        """Let each session free, at the end of its next call, what it keeps for calls to come; see `KeepsBuffers`."""
        self._to_shrink.update(self._sessions)


def _shrinking() -> Any:
    """Return options of a call at whose end the session's arena gives back what it does not use."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def tensor_specs(nodes: Sequence[Any]) -> list[TensorSpec]:
    """Return a session's inputs or outputs; ONNX Runtime names types as `tensor(float)`."""
    return [
        TensorSpec(node.name, node.type, tuple(axis if axis is not None else "?" for axis in node.shape))
        for node in nodes
    ]
