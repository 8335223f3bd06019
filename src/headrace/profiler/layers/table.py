"""Joins times, shapes and ceilings to the per-layer table of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import EngineError, HeadraceError, SettingsError
from headrace.base.plan import DEFAULT_ENGINE
from headrace.base.registry import Registry
from headrace.base.settings import list_names
from headrace.engines import ONNX, OPENVINO, TORCH
from headrace.profiler.layers.doubts import find_doubts
from headrace.profiler.layers.feeds import make_feed
from headrace.profiler.layers.graph_count import count_graph
from headrace.profiler.layers.protocol import Feed, LayerFacts, LayerProfiler, Recording
from headrace.profiler.layers.rescaling import rescale
from headrace.profiler.layers.roofline import judge, measure_ceilings
from headrace.profiler.layers.timing import Timing, time_calls
from headrace.runs.formats.layers import Ceilings, Layer, LayersDocument

#: By the name of the engine; each brings a large library when it is loaded.
PROFILERS = Registry(
    "headrace.layer_profilers",
    {
        ONNX: "headrace.profiler.layers.onnx_profile:OnnxLayers",
        OPENVINO: "headrace.profiler.layers.openvino_profile:OpenVinoLayers",
        TORCH: "headrace.profiler.layers.torch_profile:TorchLayers",
    },
    "engine",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything that the table is made from."""

    engine: str
    artifact: str
    batch_size: int
    threads: int
    timing: Timing
    recording: Recording
    ceilings: Ceilings | None = None
    cross_check: float | None = None
    """Operations per call counted from the model file; None if that could not be done."""
    warnings: tuple[str, ...] = ()
    """What was found before."""


def measure_layers(
    artifact: Path,
    *,
    engine: str | LayerProfiler = DEFAULT_ENGINE,
    threads: int,
    batch_size: int,
    inputs: np.ndarray | Mapping[str, np.ndarray] | None,
    options: Mapping[str, Any] = {},
    calls: int | None = None,
    seconds: float = 3.0,
    with_ceilings: bool = True,
) -> LayersDocument:
    """Return what each layer of a model takes, and what limits it on this machine.

    The model runs in sessions of its own, apart from any pipeline; nothing else should run meanwhile.

    Args:
        artifact: The model file.
        engine: Its name in a Plan, or an adapter of your own.
        threads: Threads inside one call, >= 1.
        batch_size: >= 1; best the one that the pipeline forms.
        inputs: What the module's `preprocess` gives, stacked, or {name: array} for a model with several inputs; cut or
            repeated to the batch size. None: made-up numbers, with a warning.
        options: The Plan's `[model.options]`.
        calls: Profiled calls to average; None: as many as fit into `seconds`.
        seconds: Time for the calls, > 0; opening the model (three times) and the ceilings (1 to 2 s) come on top.
        with_ceilings: Whether to measure what this machine can do; without, nothing is known of bounds.

    Raises:
        EngineError: If the model cannot be opened, refuses the inputs or gives no profile.
        MissingExtra: If the engine's library is not installed.
        SettingsError: If the engine has no layers, or an option is unknown.
        ValueError: If a number is out of its range.
    """
    for name, number in (("threads", threads), ("batch_size", batch_size), ("calls", 1 if calls is None else calls)):
        if number < 1:
            raise ValueError(f"{name} = {number} is not possible; allowed: whole numbers >= 1")
    if not seconds > 0:
        raise ValueError(f"seconds = {seconds} is not possible; allowed: more than 0")
    profiler = _profiler(engine) if isinstance(engine, str) else engine
    model = profiler.open(artifact, threads=threads, options=options)
    try:
        feed = make_feed(model.inputs, batch_size, inputs)
        model.describe(feed)
        timing = time_calls(model, feed, calls=calls, seconds=seconds)
        recording = model.read_recording(timing.kept())
    finally:
        model.close()
    cross_check, warnings = _cross_check(artifact, feed)
    if inputs is None:
        warnings.append(
            "the inputs were made up; layers whose time depends on the data may take longer or shorter on real ones"
        )
    return assemble(
        Measurement(
            engine=profiler.engine,
            artifact=artifact.name,
            batch_size=batch_size,
            threads=threads,
            timing=timing,
            recording=recording,
            ceilings=measure_ceilings(profiler, threads) if with_ceilings else None,
            cross_check=cross_check,
            warnings=tuple(warnings),
        )
    )


def _profiler(engine: str) -> LayerProfiler:
    if engine not in PROFILERS:
        raise SettingsError(
            f"layers of the engine {engine!r} cannot be measured; they can for: "
            f"{list_names(sorted(PROFILERS.names()), engine)}"
        )
    profiler: LayerProfiler = PROFILERS.make(engine, LayerProfiler)
    return profiler


def _cross_check(artifact: Path, feed: Feed) -> tuple[float | None, list[str]]:
    """Return the count from the model file, or None and the reason."""
    if artifact.suffix != ".onnx":
        return None, [
            f"operations were counted in one way only: {artifact.name} is no ONNX file, whose graph could be walked"
        ]
    try:
        counted = count_graph(artifact, {name: array.shape for name, array in feed.items()})
    except HeadraceError as error:
        return None, [f"operations were counted in one way only: {error}"]
    if not counted.uncounted:
        return counted.flops, []
    uncounted = ", ".join(f"{number} {name}" for name, number in sorted(counted.uncounted.items()))
    return counted.flops, [f"the graph's count leaves out nodes whose operator or shape is not known: {uncounted}"]


def assemble(measured: Measurement) -> LayersDocument:
    """Return the table: times averaged over the calls kept and scaled so that they add up to the latency.

    Raises:
        EngineError: If no call is left to average, or no layer took any time.
    """
    timing, recording = measured.timing, measured.recording
    raw = recording.raw_seconds
    if not raw.sum() > 0:
        raise EngineError(
            f"the profiler of {measured.engine} recorded no layer's time in {recording.num_calls} calls of "
            f"{measured.artifact}; the model may be too small for its clock"
        )
    latency, profiled_latency = timing.latency_seconds, timing.profiled_latency_seconds
    seconds = rescale(raw, np.array([facts.num_events for facts in recording.layers]), latency, profiled_latency)
    layers = tuple(
        _layer(facts, float(raw[number]), float(seconds[number]), latency, measured.ceilings)
        for number, facts in enumerate(recording.layers)
    )
    counts = [layer.flops for layer in layers if layer.flops is not None]
    document = LayersDocument(
        engine=measured.engine,
        artifact=measured.artifact,
        batch_size=measured.batch_size,
        threads=measured.threads,
        num_calls=recording.num_calls,
        num_dropped=len(timing.profiled) - recording.num_calls,
        latency_seconds=latency,
        profiled_latency_seconds=profiled_latency,
        inflation=profiled_latency / latency,
        layers=layers,
        total_flops=sum(counts) if counts else None,
        flops_cross_check=measured.cross_check,
        ceilings=measured.ceilings,
    )
    doubts = find_doubts(document, recording.num_missing)
    return msgspec.structs.replace(document, warnings=(*measured.warnings, *recording.warnings, *doubts))


def _layer(facts: LayerFacts, raw: float, seconds: float, latency: float, ceilings: Ceilings | None) -> Layer:
    flops, num_bytes = facts.work.flops, facts.work.num_bytes
    # What is mostly the profiler's own cost tells nothing of the layer's limits.
    verdict = judge(facts.work, seconds, facts.precision, ceilings if seconds > raw / 2 else None)
    return Layer(
        name=facts.name,
        operator=facts.operator,
        provider=facts.provider,
        seconds=seconds,
        share=seconds / latency,
        raw_seconds=raw,
        flops=flops,
        num_bytes=num_bytes,
        intensity=flops / num_bytes if flops is not None and num_bytes else None,
        flops_per_second=flops / seconds if flops is not None and seconds > 0 else None,
        bound=verdict.bound,
        of_ceiling=verdict.of_ceiling,
        output_shape=facts.output_shape,
        precision=facts.precision,
    )
