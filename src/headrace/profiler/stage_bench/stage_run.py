"""One stage, called back to back by workers of the runtime: what it costs alone.

How this works: a Pipeline of one stage, `_Repeated`, runs as any other. Its workers open the real stage as its own would, and
a job is a `Stretch`: the worker calls the real stage with one input after another until the stretch is over. So the runtime's
own cost, 36 to 100 us an item, comes once in a stretch and not with each call, and stages of a few microseconds are measured
too. A process for the stage is opened here and not by the runtime, which would send it whole stretches: sending it each
input is part of what such a stage costs.

There are as many jobs of a stretch as workers are to take part, who wait for one another; the next stretch begins when all
have left. The first call of each does not count. When the last has made it, the window opens in which throughput is counted;
the others are in the midst of calls by then, as they are at its end, and each goes on until the end has passed. Each reads its
own clocks after its first and after its last call, and the cost of a call comes from all calls between. The CPU time of
threads that the stage's libraries started is read when the window opens and by the first worker that leaves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.plan import Plan, RunPlan, SourcePlan, StagePlan
from headrace.base.policies.batching import ReleaseReason
from headrace.base.records import Job
from headrace.pipeline.definition import DELIVER, Pipeline
from headrace.pipeline.item import Item
from headrace.pipeline.remote import RemoteGroup
from headrace.pipeline.worker import RunsItems
from headrace.profiler.stage_bench.background import BackgroundRun, Discard
from headrace.profiler.stage_bench.inputs import Sample
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts, close
from headrace.profiler.stage_bench.schedstat import cpu_seconds_of, task_times, threads_of
from headrace.profiler.stage_bench.values import copy_of
from headrace.sources.finite import Entry, FiniteSource
from headrace.stages.stage import Stage, StageContext

#: How soon a stop is noticed.
_POLL_SECONDS = 0.05
#: The runtime gives several jobs to one worker where they are shorter than this, and a worker takes part only once.
_LEAST_SECONDS = 0.01


def run_stretches(parts: PipelineParts, stage: Stage, stretches: Sequence[Stretch], stop: Callable[[], bool]) -> None:
    """Call a stage back to back in one stretch after another; each then has its measurement, up to where it was stopped.

    Raises:
        HeadraceError: If the stage cannot be opened by as many workers as the largest stretch has.
    """
    repeated = _Repeated(parts, stage)
    plan = Plan(
        stages={
            repeated.name: StagePlan(executor="thread", workers=max(one.setting.workers for one in stretches)),
            DELIVER: StagePlan(executor="inline"),
        },
        source=SourcePlan(receive_batch=1, wait_seconds=_POLL_SECONDS),
        run=RunPlan(stall_seconds=0.0),  # a stretch may be as long as the caller likes
    )
    source = _InTurn(stretches)
    is_stopped = False
    try:
        with BackgroundRun(Pipeline(source, stages=[repeated], delivery=Discard()), source, plan) as running:
            while running.goes_on(_POLL_SECONDS) and not is_stopped:
                is_stopped = stop()
            for stretch in stretches:
                stretch.stop()  # where one goes on
    finally:
        repeated.close(at_once=is_stopped)
    if running.error is not None:
        raise running.error


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting to measure."""

    workers: int
    batch_size: int | None
    """None for stages that take items one by one."""


@dataclass(slots=True, kw_only=True)
class Measurement:
    """What one worker did, or several together: seconds are summed over workers."""

    num_items: int = 0
    num_failed: int = 0
    num_calls: int = 0
    throughput: float = 0.0
    """Items per second in the window."""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the workers and of the threads that their libraries started."""
    native_cpu_seconds: float = 0.0
    """The libraries' part of it."""
    run_delay_seconds: float | None = 0.0
    """Runnable without a core, of the workers; None where the kernel does not tell."""
    error: str = ""
    """Why the first item failed."""

    def add_call(self, items: Sequence[Item], began: float, ended: float, window: tuple[float, float] | None) -> None:
        """Count a call, and in throughput the part of it that lies in the window.

        Were each worker counted from the start of a call to the end of one, then workers that take turns at a lock would all
        seem to have one turn more than time allows.
        """
        failed = [item for item in items if item.error is not None]
        done = len(items) - len(failed)
        if window is not None and ended > began:
            inside = max(0.0, min(ended, window[1]) - max(began, window[0]))
            self.throughput += done * inside / (ended - began) / (window[1] - window[0])
        self.num_calls += 1
        self.num_items += done
        self.wall_seconds += ended - began
        if failed:
            self.num_failed += len(failed)
            self.error = self.error or str(failed[0].error)

    def add(self, other: Measurement) -> None:
        """Add what another worker did, or the same ones at another time."""
        self.num_items += other.num_items
        self.num_failed += other.num_failed
        self.num_calls += other.num_calls
        self.throughput += other.throughput
        self.wall_seconds += other.wall_seconds
        self.cpu_seconds += other.cpu_seconds
        self.native_cpu_seconds += other.native_cpu_seconds
        is_known = self.run_delay_seconds is not None and other.run_delay_seconds is not None
        self.run_delay_seconds = (self.run_delay_seconds or 0) + (other.run_delay_seconds or 0) if is_known else None
        self.error = self.error or other.error


class Stretch:
    """Workers of one setting call the stage for a while.

    Args:
        setting: How many side by side, and how many items a call has.
        batches: What the calls are given, round and round; at least one.
        seconds: Length of the window; each worker makes at least one call.
        copies: Give each call a copy of its inputs: the stage changes them.

    Attributes:
        measurement: What was measured; None before it is over, and if it was stopped.
        window: Start and end, seconds of time.monotonic; None until all workers are ready.
        is_stopped: Workers are to leave.
        is_over: Set when all workers have left.
    """

    def __init__(
        self, setting: Setting, batches: Sequence[Sequence[Sample]], seconds: float, *, copies: bool = False
    ) -> None:
        self.setting = setting
        self.batches = batches
        self.copies = copies
        self.measurement: Measurement | None = None
        self.window: tuple[float, float] | None = None
        self.is_stopped = False
        self.is_over = threading.Event()
        self._seconds = max(seconds, _LEAST_SECONDS)
        self._gate = threading.Barrier(setting.workers)
        self._lock = threading.Lock()
        self._num_ready = self._num_left = 0
        self._total = Measurement()
        self._native_before: dict[tuple[int, int], float] = {}
        self._native_cores = 0.0

    def stop(self) -> None:
        """Let workers leave after the calls that they are in."""
        self.is_stopped = True
        self._gate.abort()

    def begin(self) -> int:
        """Wait for the other workers, and return where in `batches` this one begins: no two work on one input at once.

        Raises:
            BrokenBarrierError: If it was stopped.
        """
        return self._gate.wait() * len(self.batches) // self.setting.workers

    def note_ready(self, read_native_cpu: Callable[[], dict[tuple[int, int], float]]) -> None:
        """Note that a worker has made its first call; the last one opens the window."""
        with self._lock:
            self._num_ready += 1
            if self._num_ready == self.setting.workers:
                self._native_before = read_native_cpu()
                now = time.monotonic()
                self.window = (now, now + self._seconds)

    def leave(self, mine: Measurement | None) -> None:
        """Note what a worker did; None: it broke, and the others need not go on."""
        with self._lock:
            if mine is None or self.window is None:
                self.stop()
            else:
                if not self._num_left:
                    after, elapsed = cpu_seconds_of(self._native_before), time.monotonic() - self.window[0]
                    used = sum(after[task] - cpu for task, cpu in self._native_before.items() if task in after)
                    self._native_cores = used / elapsed
                self._total.add(mine)
            self._num_left += 1
            if self._num_left == self.setting.workers:
                if not self.is_stopped:
                    self.measurement = self._with_native_cpu()
                self.is_over.set()

    def _with_native_cpu(self) -> Measurement:
        total = self._total
        # Workers are measured over whole calls, a little longer than the window.
        seconds = total.num_items / total.throughput if total.throughput else self._seconds
        total.native_cpu_seconds = self._native_cores * seconds
        total.cpu_seconds += total.native_cpu_seconds
        return total


class _InTurn(FiniteSource):
    """Gives each stretch to as many workers as it has, when the one before is over. One job is received at a time."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        super().__init__(max_receives=1)
        self._stretches = stretches
        self._given: list[Stretch] = []

    def entries(self) -> Iterator[Entry]:
        """Return the jobs of all stretches."""
        for number, stretch in enumerate(self._stretches):
            for worker in range(stretch.setting.workers):
                payload: Any = stretch
                yield Entry(f"{number}/{worker}", payload)

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return the next job, if its turn has come."""
        # Not in `entries`: there a lock is taken that a worker of the stretch before may need to leave it.
        last = self._given[-1] if self._given else None
        is_given = last is not None and self._given.count(last) == last.setting.workers
        if last is not None and is_given and not last.is_over.wait(wait_seconds):
            return []
        jobs = super().receive(1, wait_seconds)
        payloads: list[Any] = [job.payload for job in jobs or ()]
        self._given += payloads
        return jobs


class _Repeated(Stage):
    """Calls another stage back to back, as each Stretch that comes says."""

    computes = False  # the runtime's thread budget is not for what runs in here

    def __init__(self, parts: PipelineParts, stage: Stage) -> None:
        super().__init__(f"{stage.name} alone")
        self._parts = parts
        self._stage = stage
        self._groups: list[RunsItems] = []
        self._others: set[int | None] = {*threads_of(os.getpid())}
        self._has_jobs = False

    def open(self, context: StageContext) -> Callable[[Stretch], None]:
        """Open the stage as its worker would."""
        group = self._parts.open(self._stage, context.worker)
        self._groups.append(group)
        return lambda stretch: self._take_part(group, stretch)

    def close(self, *, at_once: bool) -> None:
        """Let processes end."""
        for group in self._groups:
            if at_once and isinstance(group, RemoteGroup):
                group.kill()  # its thread may still wait for an answer
            close(group)

    def _take_part(self, group: RunsItems, stretch: Stretch) -> None:
        if not self._has_jobs:  # before the first call, all new threads of Python are the runtime's
            self._others.update(thread.native_id for thread in threading.enumerate())
            self._has_jobs = True
        mine = None
        try:
            mine = self._call_back_to_back(group, stretch)
        finally:
            stretch.leave(mine)

    def _call_back_to_back(self, group: RunsItems, stretch: Stretch) -> Measurement:
        batches, place = stretch.batches, stretch.begin()
        call = _caller(group, stretch)
        call(batches[place % len(batches)])  # pays for allocation and caches, and does not count
        stretch.note_ready(self._native_cpu)
        here = (os.getpid(), threading.get_native_id())
        child = (group.process_id, group.process_id)
        tasks = [here] if child[0] == here[0] else [here, child]
        before = [task_times(*task) for task in tasks]
        mine, cpu_before, ended = Measurement(), time.thread_time(), time.monotonic()
        while not stretch.is_stopped:
            place += 1
            began, items, ended = ended, call(batches[place % len(batches)]), time.monotonic()
            mine.add_call(items, began, ended, window := stretch.window)
            if window is not None and ended >= window[1]:
                break
        mine.cpu_seconds = time.thread_time() - cpu_before
        after = [task_times(*task) for task in tasks]
        pairs = [(early, late) for early, late in zip(before, after, strict=True) if early and late]
        mine.cpu_seconds += sum(late.cpu_ns - early.cpu_ns for early, late in pairs[1:]) / 1e9  # the first's is exact
        delay = sum(late.run_delay_ns - early.run_delay_ns for early, late in pairs) / 1e9
        mine.run_delay_seconds = delay if len(pairs) == len(tasks) else None
        return mine

    def _native_cpu(self) -> dict[tuple[int, int], float]:
        """Return CPU seconds by (process, thread) of what came with the stage, such as its libraries' threads."""
        here = os.getpid()
        tasks = [(here, thread) for thread in threads_of(here) - self._others]
        for child in {group.process_id for group in self._groups} - {here}:
            tasks += [(child, thread) for thread in threads_of(child) - {child}]
        return cpu_seconds_of(tasks)


def _caller(group: RunsItems, stretch: Stretch) -> Callable[[Sequence[Sample]], list[Item]]:
    reason, copies = ReleaseReason.FULL if stretch.setting.batch_size else None, stretch.copies

    def call(samples: Sequence[Sample]) -> list[Item]:
        values = [copy_of(one.value) for one in samples] if copies else [one.value for one in samples]
        items = [Item(one.job, value, ()) for one, value in zip(samples, values, strict=True)]
        unpack = group.run(items, reason)
        if unpack is not None:
            unpack()
        return items

    return call
