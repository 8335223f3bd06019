"""Records what every stage really gets: runs the first jobs through the stages one after another and keeps copies.

Each stage is opened by itself and called in this thread, as a worker of a run calls it, and a few jobs go through all stages
before the next come, so that memory can be bounded. Jobs are received from the source, and given back to it as soon as their
payloads are known. A queue is refused: giving back counts as a delivery there, and after a few the job would be dead-lettered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import ItemError, SettingsError, SourceError, StageFailed
from headrace.base.plan import SourcePlan
from headrace.base.policies.batching import ReleaseReason
from headrace.base.protocols import Source
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.pipeline.item import Item
from headrace.pipeline.sizes import measure
from headrace.pipeline.worker import RunsItems
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts, close
from headrace.profiler.stage_bench.values import copy_of, is_same
from headrace.runs.hardware import find_hardware
from headrace.sources.finite import FiniteSource
from headrace.sources.queue_source import QueueSource
from headrace.stages.stage import Fan, Joined, Stage

#: Most memory for inputs; less where memory is short.
MAX_BYTES = 1 << 30
#: Jobs of a folder or list that variations work on: more of them mean less that a cache on the way already knows.
MAX_JOBS = 1000
#: Receives without any job after which a source counts as empty.
_EMPTY_RECEIVES = 5
_RETURNED = Outcome(OutcomeKind.RETURNED, "the stage benchmark only looked at it")


@dataclass(frozen=True, slots=True)
class Sample:
    """One recorded input of a stage."""

    job: Job
    value: Any


@dataclass(slots=True)
class StageInputs:
    """What one stage was given."""

    stage: Stage
    given: list[Sample] = field(default_factory=list)
    """Of items that went through it."""
    results: list[Any] = field(default_factory=list)
    """What it made of them, in the same order; of device stages only."""
    num_failed: int = 0
    """Items that failed in it, and are left out."""
    first_error: str = ""
    mutates: bool = False
    """It changes its input in place, so that each call needs a copy."""

    def note_failure(self, error: ItemError) -> None:
        """Count an item that failed in the stage."""
        self.num_failed += 1
        self.first_error = self.first_error or str(error)


@dataclass(slots=True)
class Inputs:
    """What was recorded."""

    jobs: list[Job]
    """Of the source, for runs of the whole pipeline; settled."""
    stages: dict[str, StageInputs]
    """By stage name, in the order that an item meets them."""
    num_jobs: int = 0
    """Jobs whose inputs were kept."""
    num_delivered: int = 0
    """Those of them that came through all stages."""
    num_bytes: int = 0
    """Size of the kept inputs."""
    is_cut: bool = False
    """Memory did not suffice for as many jobs as were asked for."""
    no_route: int = 0
    """Jobs whose task no module takes."""


def collect(parts: PipelineParts, items: int, stop: Callable[[], bool], max_bytes: int | None = None) -> Inputs:
    """Return the real inputs of every stage, and the jobs they came from.

    Args:
        parts: The pipeline.
        items: Jobs wanted, >= 1.
        stop: Asked between jobs; True ends the collection with what is there.
        max_bytes: Most memory for the inputs; None: 1 GiB, or a quarter of what is available if that is less.

    Raises:
        SettingsError: If the source is a queue.
        SourceError: If the source gives no job.
        HeadraceError: If a stage cannot be opened.
    """
    source = parts.pipeline.source
    refuse_queue(source)
    most = max(items, MAX_JOBS) if isinstance(source, FiniteSource) else items
    jobs = take_jobs(source, parts.plan.source, most, stop)
    inputs = Inputs(jobs, {stage.name: StageInputs(stage) for stage in parts.pipeline.stages})
    bound = min(MAX_BYTES, available_bytes() // 4) if max_bytes is None else max_bytes
    with contextlib.ExitStack() as opened:
        groups: dict[str, RunsItems] = {}
        for stage in parts.pipeline.stages:
            if stage.role != "deliver":
                groups[stage.name] = parts.open(stage, 0)
                opened.callback(close, groups[stage.name])
        collector = _Collector(parts, groups, inputs)
        while inputs.num_jobs < min(items, len(jobs)) and not stop():
            size = collector.next_size(items, bound)
            if size == 0:
                inputs.is_cut = True
                break
            collector.run(jobs[inputs.num_jobs : inputs.num_jobs + size])
    return inputs


def refuse_queue(source: Source) -> None:
    """Raise SettingsError if a source is a queue, whose jobs belong to whoever works on them for real."""
    if isinstance(source, QueueSource):
        raise SettingsError(
            "stages cannot be run alone on the jobs of a queue: each time that a job is given back counts as a delivery, and "
            "in the end it would be dead-lettered; use a pipeline with source = headrace.folder(...) or headrace.urls(...) "
            "over the same kind of items"
        )


def take_jobs(source: Source, settings: SourcePlan, most: int, stop: Callable[[], bool]) -> list[Job]:
    """Return up to `most` jobs of a source; every one is given back to it.

    Raises:
        SourceError: If it gives none.
    """
    jobs: list[Job] = []
    empty = num_bytes = 0
    source.open(settings)
    try:
        while len(jobs) < most and num_bytes < MAX_BYTES and empty < (1 if jobs else _EMPTY_RECEIVES) and not stop():
            received = source.receive(min(most - len(jobs), 1000), settings.wait_seconds)
            if received is None:
                break
            empty += not received
            jobs.extend(received)
            num_bytes += sum(job.payload.nbytes for job in received if isinstance(job.payload, np.ndarray))
            if source.is_exhausted:  # it would wait for those in our hands
                break
    finally:
        for job in jobs:
            job.settle(_RETURNED)
        source.close()
    if not jobs and not stop():
        raise SourceError("the source gave no job, so there is nothing that stages could be run on alone")
    return jobs


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory that could be used without swapping: the machine's, or the control group's limit if less."""
    limit = find_hardware().memory_bytes or MAX_BYTES
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(limit, int(line.split()[1]) * 1024)
    return limit


def same_shape_batches(given: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Return full batches of inputs of one shape each, as a runtime would form them; inputs are repeated to fill them up."""
    by_shape: dict[str | None, list[Sample]] = {}
    for sample in given:
        by_shape.setdefault(measure(sample.value)[1], []).append(sample)
    return [
        [alike[(start + offset) % len(alike)] for offset in range(size)]
        for alike in by_shape.values()
        for start in range(0, len(alike), size)
    ]


def find_join(stages: Sequence[Stage], fan_out: int) -> int:
    """Return the index of the join stage that belongs to the fan-out stage at an index."""
    depth = 0
    for index in range(fan_out, len(stages)):
        depth += {"fan_out": 1, "join": -1}.get(stages[index].role, 0)
        if depth == 0:
            return index
    raise ValueError(f"the fan-out stage {stages[fan_out].name} has no join")


class _Collector:
    """Runs jobs through the stages and keeps what each was given."""

    def __init__(self, parts: PipelineParts, groups: dict[str, RunsItems], inputs: Inputs) -> None:
        self._routes = parts.pipeline.routes
        self._groups = groups
        self._inputs = inputs
        self._batches = {stage.name: parts.batch(stage) for stage in parts.pipeline.stages}

    def next_size(self, items: int, max_bytes: int) -> int:
        """Return how many jobs to run next: one at first, which shows their size; then batches, while memory lasts."""
        inputs = self._inputs
        if inputs.num_jobs == 0:
            return 1
        room = (max_bytes - inputs.num_bytes) * inputs.num_jobs // max(1, inputs.num_bytes)
        return max(0, min(max(self._batches.values()), items - inputs.num_jobs, room))

    def run(self, jobs: Sequence[Job]) -> None:
        """Run jobs through the routes of their tasks."""
        inputs = self._inputs
        by_task: dict[str, list[Item]] = {}
        for taken in jobs:
            # Another one: stages may add to its attributes.
            job = Job(taken.id, taken.payload, task=taken.task, attributes=dict(taken.attributes))
            task = "" if len(self._routes) == 1 and "" in self._routes else job.task
            by_task.setdefault(task, []).append(Item(job, job.payload, ()))
        for task, items in by_task.items():
            if task in self._routes:
                self._run_route(self._routes[task], items)
                inputs.num_delivered += sum(item.error is None for item in items)
            else:
                inputs.no_route += len(items)
        inputs.num_jobs += len(jobs)

    def _run_route(self, stages: Sequence[Stage], items: Sequence[Item]) -> None:
        index = 0
        while index < len(stages):
            stage = stages[index]
            self._run_stage(stage, _live(items))
            after = index + 1
            if stage.role == "fan_out":
                after = find_join(stages, index)
                self._run_children(stage, stages[index + 1 : after], _live(items))
            index = after

    def _run_stage(self, stage: Stage, items: list[Item]) -> None:
        if stage.role == "deliver":
            for item in items:
                self._keep(stage, item, copy_of(item.value))
            return
        size = self._batches[stage.name] if stage.kind == "device" else 1
        by_shape: dict[str | None, list[Item]] = {}
        for item in items:
            by_shape.setdefault(item.shape_key if size > 1 else None, []).append(item)
        for alike in by_shape.values():
            for start in range(0, len(alike), size):
                self._call(stage, alike[start : start + size])

    def _call(self, stage: Stage, items: list[Item]) -> None:
        inputs = self._inputs.stages[stage.name]
        before = [item.value for item in items]
        copies = [copy_of(value) for value in before]
        unpack = self._groups[stage.name].run(items, ReleaseReason.FULL if stage.kind == "device" else None)
        if unpack is not None:
            unpack()
        for item, copied, value in zip(items, copies, before, strict=True):
            inputs.mutates = inputs.mutates or not is_same(copied, value)
            if item.error is not None:
                inputs.note_failure(item.error)
                continue
            self._keep(stage, item, copied)
            if stage.kind == "device":
                inputs.results.append(copy_of(item.value))
                self._inputs.num_bytes += measure(item.value)[0]

    def _keep(self, stage: Stage, item: Item, value: Any) -> None:
        self._inputs.stages[stage.name].given.append(Sample(item.job, value))
        self._inputs.num_bytes += measure(value)[0]

    def _run_children(self, fan_out: Stage, inner: Sequence[Stage], parents: Sequence[Item]) -> None:
        families: list[tuple[Item, Fan, list[Item]]] = []
        for parent in parents:
            fan = parent.value
            if isinstance(fan, Fan) and hasattr(fan.children, "__len__"):
                families.append((parent, fan, [Item(parent.job, value, ()) for value in fan.children]))
            else:
                parent.error = StageFailed(f"a fan_out stage must return headrace.Fan(...), got {type(fan).__name__}")
                self._inputs.stages[fan_out.name].note_failure(parent.error)
        self._run_route(inner, [child for _, _, family in families for child in family])
        for parent, fan, family in families:
            parent.error = next((child.error for child in family if child.error is not None), None)
            parent.value = Joined(fan.keep, [child.value for child in family])


def _live(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.error is None]
