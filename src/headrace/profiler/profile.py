"""Runs a pipeline and measures where its time goes: `headrace profile`, and `headrace.profile(...)`.

How this works: the profiler watches a run like any other. It switches the workers' meters on (`base.metering`), starts the
process that samples resources and thread states (`sampler`), and has one thread of its own, which five times a second
notes queue depths and CPU clocks, tells the sampler of new workers, and switches
the meters off and on to measure what they cost (`blocks`). The CPU clocks are read first when the first job has
come, and last when every job has been settled and the workers are still there, by the thread that is about to end them: a
thread that has ended cannot be asked any more. All goes into the run folder; nothing is analysed here
(`headrace.diagnose` does that). Whatever of this fails is noted under `not_measured`, and the run goes on.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeGuard

from headrace.base.documents import encode_document
from headrace.base.errors import RunFolderError, SettingsError
from headrace.base.observer import Observer
from headrace.base.page_cache import evict_all, files_of, residency, state_of
from headrace.base.plan import Plan
from headrace.base.protocols import Instrument
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, Result, run
from headrace.pipeline.watching import RunInProgress, Watch, watch_together
from headrace.profiler.backlog import BacklogGauge
from headrace.profiler.blocks import BlockSchedule, Reading
from headrace.profiler.collector_clock import CollectorClock
from headrace.profiler.cpu_clocks import CpuClocks
from headrace.profiler.hot_spots import StageSampler
from headrace.profiler.nvtx import GpuInstruments, gpu_instruments
from headrace.profiler.sampler.control import Permission, Sampler
from headrace.profiler.span_cost import affordable_spans, measure_span_cost
from headrace.runs.formats import profiling
from headrace.runs.formats.profiling import ProfilingInfo
from headrace.runs.resource_files import ResourceWriter, seal
from headrace.runs.run_folder import RunFolder, replace_file
from headrace.sources.finite import FiniteSource

logger = logging.getLogger("headrace")

GAUGE_SECONDS = 0.2
_WORKERS_EVERY_SECONDS = 0.5
#: Measured calls of each batch size at warm-up.
_CURVE_REPEATS = 3
#: Files whose pages are looked for in memory.
_FILES_LOOKED_AT = 200
#: Of a source, to choose those files from: listing millions, or a source that goes around in a circle, would hold up the run.
_ENTRIES_LISTED = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """What is measured beside wall times."""

    resource_hertz: float = 2.0
    """How often resources are sampled, 0.5 to 10."""
    state_hertz: float = 100.0
    """How often the threads' states are looked at, at most; less where that would cost more than 0.4 % of a core (1.5 % in the
    first 10 s). At 200 a run with items of 0.5 ms took x1.043 of the CPU, at 40 x1.028."""
    spans_per_second: float | None = None
    """Above this only some jobs are recorded; counters stay exact. None: as many as cost a hundredth of a core on this machine,
    at most 3,000."""
    measure_overhead: bool = True
    """Switch profiling off for short stretches, to measure what it costs."""
    python_stage: str | None = None
    """Also sample the Python code of this stage, with py-spy."""
    cold: bool = False
    """Ask the kernel to let go of the input files before the run begins."""
    curve_batch: int = 8
    """Measure at warm-up, for 1.5 s at most, what batches up to this size cost even where the Plan's are smaller, each three
    times; 0 to 1024, 0: only the Plan's, once."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("resource_hertz", 0.5, 10),
            ("state_hertz", 1, 1000),
            ("spans_per_second", 1, 1e9),
            ("curve_batch", 0, 1024),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise SettingsError(f"{name} must lie between {low:g} and {high:g}, got {value:g}")


def profile(
    pipeline: Pipeline,
    plan: Plan | str | Path | None = None,
    *,
    output: str | Path,
    limit: int | None = None,
    force: bool = False,
    observers: Sequence[Observer] = (),
    watch: Watch | None = None,
    instruments: Sequence[Instrument] = (),
    settings: ProfileSettings | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Run a pipeline as `headrace.run` does, and measure what its stages cost; raises what that raises.

    Args:
        pipeline: What is done.
        plan: How: a Plan or the path of one; None for defaults.
        output: Run folder to write; `headrace.diagnose.profile_document` reads it.
        limit: Receive at most so many jobs.
        force: Replace what an earlier run left in the folder.
        observers: Who else is told.
        watch: What else lives beside the run: a live view.
        instruments: What goes around the calls of stages, in their workers.
        settings: What is measured.
        stop: Ends the run once it is set, as in `headrace.run`.

    Raises:
        SettingsError: Also if the input is to be cold, and is no files of this machine.
    """
    if settings and settings.cold and not _has_files(pipeline.source):
        raise SettingsError(
            f"--cold: the items of {type(pipeline.source).__name__} are no files of this machine, so nothing can be made to "
            "leave its page cache; name a folder or shards with --source"
        )
    return run(
        pipeline,
        plan,
        output=output,
        limit=limit,
        force=force,
        observers=observers,
        stop=stop,
        checkpoint=False,  # it measures: the next one is to measure the same again
        **profiling_options(pipeline, plan, settings, watch=watch, instruments=instruments),
    )


def profiling_options(
    pipeline: Pipeline,
    plan: Plan | str | Path | None = None,
    settings: ProfileSettings | None = None,
    *,
    watch: Watch | None = None,
    instruments: Sequence[Instrument] = (),
) -> dict[str, Any]:
    """Return the options with which `headrace.run`, and a service, measure what stages cost; see `profile`."""
    settings = settings or ProfileSettings()
    gpu = gpu_instruments(has_processes=_has_processes(pipeline, plan))
    permission = Permission()
    return {
        "watch": watch_together(lambda run: _watch(run, settings, gpu, permission), *([watch] if watch else ())),
        "instruments": (*instruments, *gpu.instruments, permission),
        "measuring": Measuring(
            curve_batch=settings.curve_batch, curve_repeats=_CURVE_REPEATS if settings.curve_batch else 1
        ),
    }


def _has_files(source: Any) -> TypeGuard[FiniteSource]:
    """Return whether a source lists files of this machine, and may be asked for them beforehand.

    To read another one of the user's may take as long as the run, or do something twice.
    """
    return isinstance(source, FiniteSource) and (not source.lists_ahead or getattr(source, "gives_files", False))


def _has_processes(pipeline: Pipeline, plan: Plan | str | Path | None) -> bool:
    plan = Plan.load(plan) if isinstance(plan, str | Path) else plan or Plan()
    executors = {stage.name: stage.executor for stage in pipeline.stages}
    executors.update((name, one.executor) for name, one in plan.stages.items() if one.executor is not None)
    return "process" in executors.values()


def _watch(
    progress: RunInProgress, settings: ProfileSettings, gpu: GpuInstruments, permission: Permission
) -> AbstractContextManager[Any]:
    if settings.python_stage is None:
        return Profiler(progress, settings, gpu=gpu, permission=permission)
    sampler = StageSampler(progress, settings.python_stage)
    profiler = Profiler(progress, settings, sampler, gpu, permission)
    return watch_together(lambda _: profiler, lambda _: sampler)(progress)


class Profiler:
    """Watches one run; a context manager.

    Args:
        progress: The run.
        settings: What is measured.
        sampler: Told about here if it has no result; entered and left within this one.
        gpu: What is around the stages on a machine with a GPU.
        permission: What tells worker processes of the sampler.
    """

    def __init__(
        self,
        progress: RunInProgress,
        settings: ProfileSettings,
        sampler: StageSampler | None = None,
        gpu: GpuInstruments | None = None,
        permission: Permission | None = None,
    ) -> None:
        if progress.folder is None:
            raise SettingsError("a profile needs a run folder: give an output")
        self._run = progress
        self._settings = settings
        self._sampler = sampler
        self._permission = permission or Permission()
        self._gpu = gpu or GpuInstruments()
        self._folder: RunFolder = progress.folder
        self._info = ProfilingInfo()
        self._sampler_process = Sampler(
            self._folder.path, resource_hertz=settings.resource_hertz, state_hertz=settings.state_hertz
        )
        self._gauges = ResourceWriter(self._folder.path, "gauges")
        self._backlog = BacklogGauge(
            progress.pipeline.source, ResourceWriter(self._folder.path, "source"), progress.begun
        )
        self._collector = CollectorClock()
        self._blocks = BlockSchedule()
        self._clocks: CpuClocks | None = None
        self._began = self._ended = 0.0
        self._tell_workers_at = 0.0
        self._stopping = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="headrace-profiler", daemon=True)

    def __enter__(self) -> Profiler:
        self._info.page_cache_share = self._page_cache()
        self._sampler_process.start()
        self._permission.helper_process = self._sampler_process.helper_process
        self._run.metering.on = True
        self._limit_spans()
        self._run.before_closing.append(self._end)
        self._thread.start()
        self._backlog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._run.metering.on = False
        self._collector.stop()
        self._backlog.stop()
        self._gauges.close()
        report = self._sampler_process.close()
        info = self._info
        info.helper_process = report.helper_process
        info.helper_cpu_seconds = report.helper_cpu_seconds
        info.state_samples_per_second = report.state_samples_per_second
        info.outputs = report.outputs
        info.not_measured.update(report.not_measured)
        if self._backlog.problem:
            info.not_measured["backlog"] = self._backlog.problem
        if report.problem:
            info.not_measured["helper"] = report.problem
        if self._sampler is not None and self._sampler.problem:
            info.not_measured["hot_spots"] = self._sampler.problem
        info.not_measured.update(self._gpu.not_measured)
        info.not_measured.update(
            (f"cost_curve:{curve.stage}", curve.not_measured) for curve in self._run.warm_ups if curve.not_measured
        )
        info.device_seconds = self._device_seconds()
        info.blocks = self._blocks.pairs()
        info.sampling = self._run.span_limit.changes if self._run.span_limit is not None else []
        self._note_cpu()
        self._write()

    def _limit_spans(self) -> None:
        limit = self._settings.spans_per_second
        if limit is None:
            self._info.span_cost = measure_span_cost()
            limit = affordable_spans(self._info.span_cost)
        self._info.span_limit_per_second = limit
        if self._run.span_limit is not None:
            self._run.span_limit.per_second = limit

    def _device_seconds(self) -> dict[str, float]:
        """Return {stage: mean seconds of a call by the device's clock}, without the calls of warm-up, which come first."""
        if self._gpu.events is None:
            return {}
        skipped = {curve.stage: curve.num_calls for curve in self._run.warm_ups}
        found = {times.stage: times.seconds[skipped.get(times.stage, 0) :] for times in self._gpu.events.device_times()}
        return {stage: sum(seconds) / len(seconds) for stage, seconds in found.items() if seconds}

    def _watch(self) -> None:
        try:
            while not self._run.begun.wait(GAUGE_SECONDS):
                if self._stopping.is_set():
                    return
                self._tell_workers(time.monotonic())
            with self._looking:
                if self._stopping.is_set():
                    return
                self._collector.start()
                self._clocks = CpuClocks(self._run.worker_threads())
                # After the reading: on a busy machine it comes late, and what was used before it is in no account.
                self._began = self._ended = time.monotonic()
            # Not evenly: a period that batches or timers share would always see the same part of it.
            while not self._stopping.wait(GAUGE_SECONDS * random.uniform(0.7, 1.3)):
                with self._looking:
                    if self._stopping.is_set():
                        return
                    self._look(self._clocks)
        except Exception as error:  # Watching must not end the run.
            self._note_failure(error)

    def _end(self) -> None:
        """Look for the last time, in the thread that is about to close the run."""
        self._backlog.stop()
        with self._looking:
            self._stopping.set()
            try:
                if self._clocks is not None:
                    self._read_clocks(self._clocks)
                    self._write_gauges()
            except Exception as error:  # Watching must not end the run.
                self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        logger.error("the profiler failed and looks no more; the run goes on", exc_info=error)
        self._info.not_measured["gauges"] = f"the profiler's thread failed: {error}"
        self._run.metering.on = True

    def _read_clocks(self, clocks: CpuClocks) -> None:
        self._ended = time.monotonic()
        clocks.read(self._run.worker_threads(), self._run.receivers_cpu_seconds)

    def _look(self, clocks: CpuClocks) -> None:
        self._read_clocks(clocks)
        now = self._ended
        self._tell_workers(now)
        self._write_gauges()
        if self._settings.measure_overhead:
            progress = self._run.summary.progress()
            reading = Reading(now, progress.finished, clocks.total(), dict(progress.passages))
            self._run.metering.on = self._blocks.tell(reading)

    def _tell_workers(self, now: float) -> None:
        if now >= self._tell_workers_at:
            self._tell_workers_at = now + _WORKERS_EVERY_SECONDS
            self._sampler_process.set_threads(self._run.worker_threads())

    def _write_gauges(self) -> None:
        counters = self._run.counters
        settled = (
            counters.delivered
            + counters.rejected
            + counters.dead_lettered
            + counters.retried
            + counters.returned
            + counters.lost
        )
        values: dict[str, dict[str, float]] = {
            "run": {
                "in_flight": counters.received - settled,
                "received": counters.received,
                "settled": settled,
                "delivered": counters.delivered,
                **self._collector.gauges(),
            }
        }
        collecting: defaultdict[str, float] = defaultdict(float)
        for place in self._run.worker_threads():
            collecting[place.name.rpartition("-")[0]] += self._collector.thread_seconds.get(place.thread_id, 0.0)
        for station in self._run.statistics():
            values[f"stage:{station.name}"] = {
                "queue_depth": station.depth,
                "queue_bytes": station.depth_bytes,
                "busy_workers": station.busy,
                "waiting_producers": station.waiting_producers,
                "gc_seconds": collecting[station.name],
            }
        self._gauges.write(time.monotonic_ns(), values)

    def _page_cache(self) -> float | None:
        source = self._run.pipeline.source
        if not _has_files(source):
            return None
        most = None if self._settings.cold else _ENTRIES_LISTED
        try:
            files = files_of(entry.payload for entry in itertools.islice(source.parts(), most))
        except Exception as error:
            self._info.not_measured["page_cache"] = f"the input files could not be listed: {error}"
            return None
        if not files:
            return None
        if self._settings.cold:
            evict_all(files)
        found = residency(files, _FILES_LOOKED_AT)
        if found.share is None:
            self._info.not_measured["page_cache"] = found.reason
        if self._settings.cold and state_of(found.share) != "cold":
            why = found.reason or f"{found.share:.0%} of their pages are still there"
            logger.warning("the input files could not be made to leave the page cache: %s", why)
        return found.share

    def _note_cpu(self) -> None:
        if self._clocks is None:
            received = self._run.counters.received
            self._info.not_measured["cpu"] = (
                "the run was over before its clocks were read" if received else "no job came"
            )
            return
        self._info.thread_cpu_seconds = self._clocks.sum_by_role(self._run.flushes_cpu_seconds)
        self._info.process_cpu_seconds = self._clocks.total()
        self._info.native_cpu_seconds = self._clocks.native()
        self._info.voluntary_switches, self._info.involuntary_switches = self._clocks.count_switches()
        self._info.warm_up_cpu_seconds = sum(curve.cpu_seconds for curve in self._run.warm_ups)
        self._info.elapsed_seconds = self._ended - self._began

    def _write(self) -> None:
        try:
            for problem in seal(self._folder.path):
                logger.warning("%s", problem)
            content = encode_document(self._info, indent=True)
            replace_file(self._folder.path / profiling.FILE, content + b"\n")
        except (OSError, RunFolderError) as error:
            logger.error(
                "what the profiler measured cannot be written to %s: %s; spans and what is there already can still be read. "
                "Free space on the disk and profile again for the rest.",
                self._folder.path,
                error,
            )
