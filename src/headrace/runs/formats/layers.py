"""Inside the model, `layers.json` of the run folder, schema `headrace.layers/1`. Version 1: 2026-11, first.

The same table for every engine: ONNX Runtime's profile, OpenVINO's `get_profiling_info`, PyTorch's profiler. Times come from a
profiled run of the model, kept apart from the timing run, and are rescaled to the latency without profiling.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "headrace.layers/1"
FILE = "layers.json"

Bound = Literal["compute", "memory", "overhead", "unknown"]


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer (node) of the model as the engine ran it."""

    name: str
    operator: str
    """As the engine names it, e.g. `Conv`, `FusedConv`."""
    provider: str
    """Execution provider or device."""
    seconds: float
    """Mean per call, rescaled to the latency without profiling."""
    share: float
    """Of the model's latency, 0 to 1."""
    raw_seconds: float
    """As the engine's profiler gave it."""
    flops: float | None
    """Floating-point (or integer) operations per call, a multiply-add counted as two; None for operators not in the table."""
    num_bytes: float | None
    """Least traffic per call: inputs, weights and outputs once."""
    intensity: float | None
    """flops / num_bytes."""
    flops_per_second: float | None
    bound: Bound
    """What limits it by the roofline: `overhead` when it reaches neither ceiling's tenth."""
    of_ceiling: float | None
    """Achieved over the roofline's limit at this intensity, with the bandwidth at the layer's size, 0 to 1; above 1 the
    ceiling was measured too low, which is warned of. None where the ceiling that counts was not measured."""
    output_shape: str = ""
    precision: str = ""


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """How fast this machine moves data of one size."""

    working_set_bytes: float
    """All arrays of all threads together."""
    bytes_per_second: float


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine can do, measured with as many threads as the model used."""

    flops_per_second: float
    """Best of matrix products, float32."""
    bytes_per_second: float
    """Best of copies and sums of arrays larger than the last-level cache."""
    threads: int
    method: str
    bandwidths: tuple[Bandwidth, ...] = ()
    """The same at several sizes, smallest first: a layer that fits into a cache may go beyond `bytes_per_second`."""


class LayersDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The per-layer table of one model."""

    schema: str = SCHEMA
    engine: str
    artifact: str
    batch_size: int
    threads: int
    num_calls: int
    """Profiled calls that were averaged; warm-up was dropped."""
    num_dropped: int
    latency_seconds: float
    """Median of calls without profiling."""
    profiled_latency_seconds: float
    inflation: float
    """profiled over unprofiled latency; above 1.2 the shares are doubtful."""
    layers: tuple[Layer, ...]
    total_flops: float | None
    flops_cross_check: float | None
    """The same count by another way (shapes of the graph); None if it could not be made."""
    ceilings: Ceilings | None
    warnings: tuple[str, ...] = ()
