"""Runs of whole pipelines made by hand, whose bottleneck is known: first in, first out, bounded queues, several workers."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.plan import Plan, StageDefaults, resolve
from headrace.base.records import Receiving
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.bounds import find_bounds
from headrace.diagnose.candidates import find_candidates
from headrace.diagnose.verdict.facts import Facts
from headrace.runs.hardware import Hardware
from headrace.runs.reader import Run

Values = float | Sequence[float] | np.ndarray


@dataclass(kw_only=True)
class Made:
    """One stage of a made-up run; seconds per item, one value or one for each item."""

    name: str
    cpu: Values = 0.001
    wait: Values = 0.0
    """Blocked."""
    state: Sequence[str] | str = "network"
    """What it waits for, or each item does, as samples of its threads tell."""
    delay: Values = 0.0
    """Waiting for a core."""
    workers: int = 1
    kind: str = "cpu"
    queue: int = 16
    work: str = ""
    executor: str = "thread"
    bytes_in: Values = 10
    bytes_out: Values = 20
    shape: Sequence[str] | str | None = None
    batch: int | None = None
    reason: str = "full"
    releases_gil: bool = True
    meanwhile: str = ""
    """Stage of one worker that was seen at work in the moments in which this one waited."""
    outcome: Sequence[str] | str = "ok"
    attempt: Sequence[int] | int = 1


@dataclass(kw_only=True)
class Pipe:
    """A made-up run; see `Made`."""

    stages: list[Made]
    num_jobs: int = 400
    arrivals: Values | None = None
    """Seconds at which jobs arrive; None: as fast as they are taken."""
    cores: int = 4
    quota: float | None = None
    others: float | None = 0.0
    """Cores used by others."""
    in_flight: int | None = None
    settings: list[str] = field(default_factory=lambda: ["model.threads=1"])
    receiving: dict[str, Any] | None = field(default_factory=dict)
    """Changes of what receivers did; None: not recorded."""
    gauges: dict[tuple[str, str], Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    """Other fields of run.json."""
    runtime: float | None = None
    """CPU seconds per item of the workers beside their stages; None: the CPU time of the processes was not measured."""
    native: float = 0.0
    """CPU seconds per item of threads that libraries started; needs `runtime`."""


@pytest.fixture
def make_run(builder: Any) -> Callable[[Pipe], Run]:
    """Writes the folder of a made-up run and reads it back."""

    def write(pipe: Pipe) -> Run:
        return _Writer(builder, pipe).write()

    return write


@pytest.fixture
def make_member(builder: Any, tmp_path: Path) -> Callable[[str, Pipe], Run]:
    """Writes the folder of a member of a whole run below the folder `whole`, and reads it back."""

    def write(name: str, pipe: Pipe) -> Run:
        return _Writer(type(builder)(tmp_path / "whole" / name), pipe).write()

    return write


@pytest.fixture
def facts_of(make_run: Callable[[Pipe], Run]) -> Callable[[Pipe], Facts]:
    """Gathers the facts of a made-up run."""

    def gather(pipe: Pipe) -> Facts:
        replay = Analysis(make_run(pipe)).replay
        return Facts.of(replay, find_candidates(replay), find_bounds(replay))

    return gather


class _Writer:
    def __init__(self, builder: Any, pipe: Pipe) -> None:
        self.builder, self.pipe = builder, pipe
        deliver = (
            [] if pipe.stages[-1].name == "deliver" else [Made(name="deliver", kind="io", cpu=2e-5, work="deliver")]
        )
        self.stages = [*pipe.stages, *deliver]
        self.rows: dict[str, dict[str, np.ndarray]] = {}

    def write(self) -> Run:
        self._simulate()
        end = max(float(row["put"].max()) for row in self.rows.values())
        for stage in self.stages:
            self._stage(stage)
        self._gauges(end)
        plan = self._plan()
        hardware = Hardware(num_cores=self.pipe.cores, cpu_quota=self.pipe.quota)
        fields: dict[str, Any] = {
            "plans": {"p1": plan.as_table()},
            "hardware": hardware,
            "receiving": self._receiving(end),
        }
        run: Run = self.builder.finish(**(fields | self.pipe.changes))
        return run

    def _values(self, values: Values) -> np.ndarray:
        return np.asarray(np.broadcast_to(np.asarray(values, float), self.pipe.num_jobs))

    def _simulate(self) -> None:
        """First in, first out; a batch is full before it begins; a worker whose next queue is full waits."""
        count = self.pipe.num_jobs
        columns = ("arrived", "dequeued", "started", "ended", "put", "worker")
        self.rows = {stage.name: {name: np.zeros(count) for name in columns} for stage in self.stages}
        free = {stage.name: [(0.0, number) for number in range(stage.workers)] for stage in self.stages}
        came = np.zeros(count) if self.pipe.arrivals is None else self._values(self.pipe.arrivals)
        service = {stage.name: self._service(stage) for stage in self.stages}
        step = max(stage.batch or 1 for stage in self.stages)
        for first in range(0, count, step):
            group = range(first, min(first + step, count))
            ready = {item: self._room(self.stages[0], item, came[item]) for item in group}
            for number, stage in enumerate(self.stages):
                size = stage.batch or 1
                after = self.stages[number + 1] if number + 1 < len(self.stages) else None
                for start in range(group.start, group.stop, size):
                    self._serve(stage, range(start, min(start + size, group.stop)), ready, free, service, after)

    def _room(self, stage: Made, item: int, at: float) -> float:
        """Return when the queue before a stage takes an item that is there from a moment on."""
        ahead = item - stage.queue
        return max(at, self.rows[stage.name]["dequeued"][ahead]) if ahead >= 0 else at

    def _serve(self, stage: Made, members: range, ready: dict[int, float], free: Any, service: Any, after: Any) -> None:
        row = self.rows[stage.name]
        at, worker = heapq.heappop(free[stage.name])
        begin = max(at, *(ready[item] for item in members))
        end = begin + service[stage.name][members.start]
        last = end
        for item in members:
            row["arrived"][item], row["dequeued"][item], row["started"][item] = ready[item], begin, begin
            row["ended"][item], row["worker"][item] = end, worker
            ready[item] = row["put"][item] = self._room(after, item, end) if after else end
            last = max(last, row["put"][item])
        heapq.heappush(free[stage.name], (last, worker))

    def _service(self, stage: Made) -> np.ndarray:
        return np.asarray(self._values(stage.cpu) + self._values(stage.wait) + self._values(stage.delay))

    def _stage(self, stage: Made) -> None:
        row, count = self.rows[stage.name], self.pipe.num_jobs
        self.builder.stage(
            stage.name,
            kind=stage.kind,
            workers=stage.workers,
            queue_capacity=stage.queue,
            work=stage.work,
            executor=stage.executor,
            releases_gil=stage.releases_gil,
        )
        batch = {}
        if stage.kind == "device":
            size = stage.batch or 1
            numbers = np.arange(count) // size
            batch = {
                "batch_id": numbers.tolist(),
                "batch_size": np.bincount(numbers)[numbers].tolist(),
                "release_reason": stage.reason,
            }
        threads = [f"{stage.name}-{int(number)}" for number in row["worker"]]
        self.builder.spans(
            stage.name,
            **{name: row[name] for name in ("arrived", "dequeued", "started", "ended", "put")},
            cpu=self._values(stage.cpu).copy(),
            run_delay=self._values(stage.delay).copy(),
            thread=threads,
            bytes_in=np.broadcast_to(np.asarray(stage.bytes_in, int), count).tolist(),
            bytes_out=np.broadcast_to(np.asarray(stage.bytes_out, int), count).tolist(),
            shape_key=stage.shape if stage.shape is None else np.broadcast_to(stage.shape, count).tolist(),
            outcome=stage.outcome if isinstance(stage.outcome, str) else list(stage.outcome),
            attempt=stage.attempt if isinstance(stage.attempt, int) else list(stage.attempt),
            **batch,
        )
        wait = self._values(stage.wait)
        blocked = np.flatnonzero(wait > 0)
        if not len(blocked):
            return
        running = self._values(stage.cpu) + self._values(stage.delay)
        waits_for = np.broadcast_to(stage.state, count)
        samples = [
            (row["started"][item] + running[item] + wait[item] / 2, threads[item], str(waits_for[item]))
            for item in blocked
        ]
        if stage.meanwhile:
            samples += [(at, f"{stage.meanwhile}-0", "running") for at, _, _ in samples]
        if stage.executor in ("thread", "inline"):  # as many as such a share of the time gets
            every = float(wait.sum()) / len(blocked)
            ends = np.cumsum(running)
            items = np.searchsorted(ends, np.arange(every / 2, ends[-1], every))
            samples += [(row["started"][item] + running[item] / 2, threads[item], "running") for item in items]
        at, names, states = zip(*sorted(samples), strict=True)
        self.builder.states(np.array(at), list(names), list(states))

    def _gauges(self, end: float) -> None:
        at = np.linspace(0.0, end, 60)
        busy = sum(float(self._per_item(stage).sum()) for stage in self.stages)
        busy += ((self.pipe.runtime or 0.0) + self.pipe.native) * self.pipe.num_jobs
        gauges: dict[tuple[str, str], Any] = {("processes", "cpu_cores"): busy / end}
        if self.pipe.others is not None:
            gauges["machine", "other_cpu_cores"] = self.pipe.others
        for (scope, name), values in (gauges | self.pipe.gauges).items():
            self.builder.gauge(scope, name, at, values)
        self.builder.profiling(**self._profiling(end))

    def _profiling(self, end: float) -> dict[str, Any]:
        if self.pipe.runtime is None:
            return {}
        workers = (
            sum(float(self._per_item(stage).sum()) for stage in self.stages) + self.pipe.runtime * self.pipe.num_jobs
        )
        native = self.pipe.native * self.pipe.num_jobs
        cpu = {"process_cpu_seconds": workers + native, "thread_cpu_seconds": {"workers": workers}}
        return {
            **cpu,
            "native_cpu_seconds": native,
            "elapsed_seconds": end,
            "voluntary_switches": 3 * self.pipe.num_jobs,
        }

    def _per_item(self, stage: Made) -> np.ndarray:
        """Return CPU seconds of each item; a batch's shared out."""
        return self._values(stage.cpu) / (stage.batch or 1)

    def _plan(self) -> Plan:
        settings = list(self.pipe.settings)
        for stage in self.stages:
            settings += [f"{stage.name}.workers={stage.workers}", f"{stage.name}.queue_items={stage.queue}"]
            if stage.batch:
                settings.append(f"{stage.name}.batch={stage.batch}")
        if self.pipe.in_flight:
            settings.append(f"source.max_in_flight={self.pipe.in_flight}")
        defaults = [
            StageDefaults(name=stage.name, kind=stage.kind, executor=stage.executor)  # type: ignore[arg-type]
            for stage in self.stages
        ]
        return resolve(Plan().with_settings(settings), defaults, self.pipe.cores)

    def _receiving(self, end: float) -> Receiving | None:
        if self.pipe.receiving is None:
            return None
        is_open = self.pipe.arrivals is not None
        calls = self.pipe.num_jobs if is_open else -(-self.pipe.num_jobs // 10)
        values: dict[str, Any] = {
            "num_receivers": 1,
            "calls": calls,
            "empty_calls": calls // 4 if is_open else 0,
            "full_calls": 0 if is_open else calls,
            "jobs": self.pipe.num_jobs,
            "asked": 10 * calls,
            "call_seconds": 0.98 * end if is_open else 1e-4 * calls,
            "empty_call_seconds": 0.6 * end if is_open else 0.0,
            "blocked_seconds": 0.02 * end if is_open else 0.98 * end,
            "inline_seconds": 0.0,
        }
        return Receiving(**(values | self.pipe.receiving))


@pytest.fixture
def made() -> type[Made]:
    """See `Made`."""
    return Made


@pytest.fixture
def pipe() -> type[Pipe]:
    """See `Pipe`."""
    return Pipe
