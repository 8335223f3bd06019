"""One stage, called back to back by workers of the runtime: what it costs alone.

How this works: a Pipeline of one stage, `_Repeated`, runs as any other. Its workers open the real stage as its own would, and
a job is a `Stretch`: the worker calls the real stage with one input after another until the stretch is over. So the runtime's
own cost, 36 to 100 us an item, comes once in a stretch and not with each call, and stages of a few microseconds are measured
too. A process for the stage is opened here and not by the runtime, which would send it whole stretches: sending it each
input is part of what such a stage costs.

There are as many jobs of a stretch as workers are to take part; the next stretch begins when all have left. The first call
of each does not count. When the last has made it, the window opens in which throughput is counted, and each worker goes on
until the window's end has passed. Each reads its own clocks after its first and after its last call, and the cost of a call
comes from all calls between. The CPU time of threads that the stage's libraries started is read when the window opens and by
the first worker that leaves.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.plan import Plan, RunPlan, SourcePlan, StagePlan
from headrace.base.policies.batching import ReleaseReason
from headrace.base.records import Job
from headrace.pipeline.definition import DELIVER, Pipeline
from headrace.pipeline.item import Item
from headrace.pipeline.remote import RemoteGroup
from headrace.pipeline.station import RunsItems
from headrace.profiler.stage_bench.background import BackgroundRun, Discard
from headrace.profiler.stage_bench.curves import Measurement, Setting
from headrace.profiler.stage_bench.inputs import Sample
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts, close
from headrace.profiler.stage_bench.schedstat import TaskTimes, cpu_seconds_of, task_times, threads_of
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
    try:
        pipeline = Pipeline(source, stages=[repeated], delivery=Discard())
        with BackgroundRun(pipeline, source, plan) as running:
            while running.goes_on(_POLL_SECONDS):
                if stop():
                    repeated.stop(stretches)
                    break
    finally:
        repeated.close()
    if running.error is not None:
        raise running.error


@dataclass(slots=True)
class Tally:
    """Counts what one worker does, and how much of it lies in the window that all workers have in common.

    A call counts by the part of it that lies in the window. Were each worker counted from the start of a call to the end of
    one, then workers that take turns at a lock would all seem to have one turn more than time allows.
    """

    window: tuple[float, float]
    """Start and end, seconds of time.monotonic."""
    started: float
    """When the first call that counts began."""
    num_items: int = 0
    num_failed: int = 0
    num_calls: int = 0
    num_in_window: float = 0.0
    error: str = ""
    """Why the first item failed."""
    cpu_seconds: float = 0.0
    run_delay_seconds: float | None = None
    """Runnable without a core; None where the kernel does not tell."""
    last: float = field(init=False)
    """When the last call ended."""

    def __post_init__(self) -> None:
        """Begin."""
        self.last = self.started

    @property
    def wall_seconds(self) -> float:
        """From the start of the first call to the end of the last."""
        return self.last - self.started

    @property
    def is_over(self) -> bool:
        """Whether the last call ended after the window did; not before a call is done."""
        return self.num_calls > 0 and self.last >= self.window[1]

    def add(self, items: Sequence[Item], now: float) -> None:
        """Count one call that ended now; it began where the one before ended."""
        failed = [item for item in items if item.error is not None]
        done = len(items) - len(failed)
        if now > self.last:
            inside = max(0.0, min(now, self.window[1]) - max(self.last, self.window[0]))
            self.num_in_window += done * inside / (now - self.last)
        self.num_calls += 1
        self.num_items += done
        self.num_failed += len(failed)
        self.error = self.error or (str(failed[0].error) if failed else "")
        self.last = now


class Stretch:
    """Workers of one setting call the stage for a while.

    Args:
        setting: How many side by side, and how many items a call has.
        batches: What the calls are given, round and round; at least one.
        seconds: Length of the window; each worker makes at least one call.
        copies: Give each call a copy of its inputs: the stage changes them.

    Attributes:
        measurement: What was measured; None before it is over, and if it was stopped.
        is_over: Set when all workers have left.
    """

    def __init__(
        self, setting: Setting, batches: Sequence[Sequence[Sample]], seconds: float, *, copies: bool = False
    ) -> None:
        self.setting = setting
        self.measurement: Measurement | None = None
        self.is_over = threading.Event()
        self._batches = batches
        self._seconds = max(seconds, _LEAST_SECONDS)
        self._copies = copies
        self._start = threading.Barrier(setting.workers, action=self._open_window)
        self._window = (0.0, 0.0)
        self._native: NativeCpu | None = None
        self._numbers = itertools.count()
        self._tallies: list[Tally] = []
        self._leaving = threading.Lock()
        self._num_left = 0
        self._is_stopped = False

    def stop(self) -> None:
        """End it after the calls that workers are in."""
        self._is_stopped = True
        self._start.abort()

    def take_part(self, group: RunsItems, native: NativeCpu) -> None:
        """Call the stage until the stretch is over; in each of its workers."""
        try:
            self._native = native
            native.note_job()
            tally = self._call_back_to_back(group)
            with self._leaving:
                if not self._tallies:
                    native.end()
                self._tallies.append(tally)
        except BaseException:
            self.stop()  # the others need not wait for this worker
            raise
        finally:
            with self._leaving:
                self._num_left += 1
                if self._num_left == self.setting.workers:
                    self.measurement = None if self._is_stopped else self._add_up(native)
                    self.is_over.set()

    def _call_back_to_back(self, group: RunsItems) -> Tally:
        batches = self._batches
        # Workers begin at different places, so that they do not work on the same input at the same time.
        place = next(self._numbers) * len(batches) // self.setting.workers
        self._call(group, batches[place % len(batches)])  # pays for allocation and caches, and does not count
        self._start.wait()
        tasks = _tasks_of(group)
        before = [task_times(*task) for task in tasks]
        cpu_before = time.thread_time()
        tally = Tally(self._window, time.monotonic())
        while not tally.is_over and not self._is_stopped:
            place += 1
            tally.add(self._call(group, batches[place % len(batches)]), time.monotonic())
        own_cpu = time.thread_time() - cpu_before
        cpu, tally.run_delay_seconds = _difference(before, [task_times(*task) for task in tasks])
        tally.cpu_seconds = own_cpu + cpu
        return tally

    def _open_window(self) -> None:
        if self._native is not None:
            self._native.begin()
        now = time.monotonic()
        self._window = (now, now + self._seconds)

    def _call(self, group: RunsItems, samples: Sequence[Sample]) -> list[Item]:
        values = [copy_of(sample.value) if self._copies else sample.value for sample in samples]
        items = [Item(sample.job, value, ()) for sample, value in zip(samples, values, strict=True)]
        unpack = group.run(items, ReleaseReason.FULL if self.setting.batch_size else None)
        if unpack is not None:
            unpack()
        return items

    def _add_up(self, native: NativeCpu) -> Measurement:
        tallies = self._tallies
        delays = [one.run_delay_seconds for one in tallies if one.run_delay_seconds is not None]
        num_items = sum(one.num_items for one in tallies)
        in_window = sum(one.num_in_window for one in tallies)
        # Workers are measured over whole calls, a little longer than the window.
        native_cpu = native.cores_used * (self._seconds * num_items / in_window if in_window else self._seconds)
        return Measurement(
            num_items=num_items,
            num_failed=sum(one.num_failed for one in tallies),
            num_calls=sum(one.num_calls for one in tallies),
            throughput=in_window / self._seconds,
            wall_seconds=sum(one.wall_seconds for one in tallies),
            cpu_seconds=sum(one.cpu_seconds for one in tallies) + native_cpu,
            native_cpu_seconds=native_cpu,
            run_delay_seconds=sum(delays) if len(delays) == len(tallies) else None,
            error=next((one.error for one in tallies if one.error), ""),
        )


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
        self._native = NativeCpu(self._groups)
        self._is_stopped = False

    def open(self, context: StageContext) -> Callable[[Stretch], None]:
        """Open the stage as its worker would."""
        group = self._parts.open(self._stage, context.worker)
        self._groups.append(group)
        return lambda stretch: stretch.take_part(group, self._native)

    def stop(self, stretches: Sequence[Stretch]) -> None:
        """End the stretch that goes on after the calls that workers are in, and begin no other."""
        self._is_stopped = True
        for stretch in stretches:
            stretch.stop()

    def close(self) -> None:
        """Let processes end."""
        for group in self._groups:
            if self._is_stopped and isinstance(group, RemoteGroup):
                group.kill()  # its thread may still wait for an answer
            close(group)


class NativeCpu:
    """CPU time of the threads that came with a stage, such as those of its libraries.

    Left out are those that were there before, and those of Python when the first job comes: they are the runtime's, and make
    the calls.

    Args:
        groups: The stage as opened by its workers; grows while they open it.

    Attributes:
        cores_used: CPU seconds per second between `begin` and `end`.
    """

    def __init__(self, groups: Sequence[RunsItems]) -> None:
        self.cores_used = 0.0
        self._groups = groups
        self._others: set[int | None] = {*threads_of(os.getpid())}
        self._has_jobs = False
        self._before: dict[tuple[int, int], float] = {}
        self._began = 0.0

    def note_job(self) -> None:
        """Find out, before the first call, which threads are the runtime's."""
        if not self._has_jobs:
            self._others.update(thread.native_id for thread in threading.enumerate())
            self._has_jobs = True

    def begin(self) -> None:
        """Read the clocks."""
        here = os.getpid()
        tasks = [(here, thread) for thread in threads_of(here) - self._others]
        for child in {group.process_id for group in self._groups} - {here}:
            tasks += [(child, thread) for thread in threads_of(child) - {child}]
        self._before, self._began = cpu_seconds_of(tasks), time.monotonic()

    def end(self) -> None:
        """Read them again."""
        after, now = cpu_seconds_of(self._before), time.monotonic()
        cpu = sum(after[task] - earlier for task, earlier in self._before.items() if task in after)
        self.cores_used = cpu / (now - self._began)


def _tasks_of(group: RunsItems) -> list[tuple[int, int]]:
    """Return this thread and, where the stage runs in a process, that one's main thread."""
    here = (os.getpid(), threading.get_native_id())
    return [here] if group.process_id == here[0] else [here, (group.process_id, group.process_id)]


def _difference(before: Sequence[TaskTimes | None], after: Sequence[TaskTimes | None]) -> tuple[float, float | None]:
    """Return the CPU seconds of all tasks but the first, whose clock is exact, and the run-queue delay of all."""
    if any(times is None for times in (*before, *after)):
        return 0.0, None
    pairs = [(early, late) for early, late in zip(before, after, strict=True) if early is not None and late is not None]
    cpu = sum(late.cpu_ns - early.cpu_ns for early, late in pairs[1:])
    return cpu / 1e9, sum(late.run_delay_ns - early.run_delay_ns for early, late in pairs) / 1e9
