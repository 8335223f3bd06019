"""How a run was watched, `profiling.json` of the run folder, schema `headrace.profiling/1`. Version 1: 2026-11, first."""

from __future__ import annotations

import msgspec

SCHEMA = "headrace.profiling/1"
FILE = "profiling.json"


class OverheadBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the run with the profiler's clocks on or off."""

    on: bool
    seconds: float
    items: int
    """Passages that ended in it."""
    cpu_seconds: float
    """Of all processes of the run, without the sampler."""
    passages: dict[str, int] = {}
    """{stage: items that went through it}: how much work was done, whatever is half done at the block's edges."""


class OverheadEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What profiling cost in CPU per item: the clocks, and the threads and the process beside them."""

    low: float | None
    mid: float | None
    high: float | None
    """Ratio of CPU per item, with all that profiling did over without it, with its 95 % interval; None with too few blocks."""
    clocks_ratio: tuple[float, float, float] | None = None
    """The same of the workers' clocks alone, from paired blocks: low, mid, high."""
    num_pairs: int
    says: str
    """One sentence, also for why there is no figure."""
    helper_core_share: float | None
    """CPU of the sampler process over elapsed time."""
    writer_core_share: float | None
    """CPU of the thread that writes spans over elapsed time."""
    thread_core_share: float | None = None
    """CPU of the profiler's own thread over elapsed time."""


class SamplingChange(msgspec.Struct, frozen=True, kw_only=True):
    """From this moment on one job in `every` was recorded; counters stay exact."""

    at_ns: int
    every: int


class SpanCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorded span costs on this machine: CPU seconds, measured before the run with warm caches."""

    reading_seconds: float
    """One reading of the wall clock and the thread's CPU clock."""
    run_delay_seconds: float
    """Asking the kernel for the thread's run-queue delay."""
    writing_seconds: float
    """Making one span and its columns."""


class ProfilingInfo(msgspec.Struct, kw_only=True):
    """What the profiler did."""

    schema: str = SCHEMA
    helper_process: int | None = None
    """Process id; None if it could not be started or died."""
    blocks: list[OverheadBlock] = []
    sampling: list[SamplingChange] = []
    span_limit_per_second: float | None = None
    span_cost: SpanCost | None = None
    """Why the limit is what it is; None where it was given, or in older profiles."""
    thread_cpu_seconds: dict[str, float] = {}
    """{role of threads: CPU seconds}, see `headrace.profiler.cpu_clocks`: `workers` (stages and handing on),
    `worker processes`, `receiving`, `finishing batches`, `heartbeats`, `making spans`, `writing results`, `writing spans`,
    `profiling`, `progress view`, `main thread`, `other Python threads`. Before 2026-11-23 `workers` held `receiving` and
    `finishing batches`."""
    voluntary_switches: int | None = None
    """Times that a thread of the run's process went to sleep, in the same time; None in profiles of before 2026-11-23."""
    involuntary_switches: int | None = None
    """Times that one lost its core while it had work."""
    warm_up_cpu_seconds: float | None = None
    """CPU of the model's warm-up, which is within `workers`."""
    process_cpu_seconds: float | None = None
    """CPU of the run's process and its children between the first arrival and the last outcome, without the sampler."""
    native_cpu_seconds: float | None = None
    """CPU of threads that Python does not know: pools of models and libraries."""
    helper_cpu_seconds: float | None = None
    elapsed_seconds: float | None = None
    """Between the first arrival and the last outcome."""
    device_seconds: dict[str, float] = {}
    """{device stage: mean seconds of a call by the device's own clock}, from CUDA events; empty without a GPU."""
    page_cache_share: float | None = None
    """Share of the input files' pages that were in memory when the run began; None where the source is not files."""
    not_measured: dict[str, str] = {}
    """{what: why}."""
    state_samples_per_second: float | None = None
    """How often the threads' states were looked at, on average."""
    outputs: dict[str, list[str]] = {}
    """{worker: pipes and terminals that it waited for somebody to read, as `/proc/PID/fd` names them}; at most four of each."""
