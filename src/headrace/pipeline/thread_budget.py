"""One governor for threads: how many cores this process may use, who gets how many threads, and whether they add up.

Every numeric library starts a thread per core of the machine unless told otherwise; several of them in one process then
fight for the cores that a container really has. headrace sets each of them from one count.
"""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.base.plan import Plan, StageDefaults
from headrace.engines import traits_of
from headrace.runs.hardware import usable_cores as usable_cores


@dataclass(frozen=True, slots=True)
class ThreadBudget:
    """Who computes with how many threads."""

    cores: int
    model_threads: Mapping[str, int]
    """Threads inside one call of the model, by device stage."""
    model_calls: Mapping[str, int]
    """Calls that the model should run side by side on a device, by device stage; one that stages share as the one with most
    needs it."""
    demand: Mapping[str, int]
    """Threads that may compute at once, by stage."""
    warnings: tuple[str, ...]
    """What adds up to more than there is, and what to do."""


def budget(plan: Plan, stages: list[StageDefaults], cores: int) -> ThreadBudget:
    """Return the thread budget of a resolved Plan.

    Args:
        plan: Resolved.
        stages: The pipeline's stages, in order.
        cores: See `usable_cores`.
    """
    model_threads: dict[str, int] = {}
    model_calls: dict[str, int] = {}
    demand: dict[str, int] = {}
    heads = _heads(plan, stages)
    most = _most_workers(plan, stages, heads)
    for stage in stages:
        head = heads[stage.name]
        workers = _num_workers(plan, head)
        if stage.kind == "device":
            model = plan.model_of(stage.task, stage.name)
            sharing = most[_model_of(plan, stage, head)]
            model_threads[stage.name] = model.threads or max(1, cores // sharing)
            copies = len(model.devices or (0,))
            model_calls[stage.name] = 1 if plan.stages[head].executor == "process" else max(1, sharing // copies)
            if traits_of(model.engine).uses_cores:
                demand[head] = max(demand.get(head, 0), workers * model_threads[stage.name])
        elif stage.kind == "cpu" and stage.computes:
            demand[head] = max(demand.get(head, 0), workers)
    warnings = []
    for name, threads in demand.items():
        if threads > cores:
            warnings.append(
                f"stage {name} may compute with {threads} threads at once, but this process may use {cores} "
                f"core{'s' if cores > 1 else ''}: lower {name}.workers or model.threads"
            )
    return ThreadBudget(cores, model_threads, model_calls, demand, tuple(warnings))


def _heads(plan: Plan, stages: list[StageDefaults]) -> dict[str, str]:
    """Return {stage: the first of those that its workers serve}."""
    heads: dict[str, str] = {}
    head = ""
    for stage in stages:
        if plan.stages[stage.name].executor != "inline" or not head:
            head = stage.name
        heads[stage.name] = head
    return heads


def _num_workers(plan: Plan, head: str) -> int:
    settings = plan.stages[head]
    return plan.source.receivers if settings.executor == "inline" else settings.workers or 1


def _most_workers(plan: Plan, stages: list[StageDefaults], heads: Mapping[str, str]) -> dict[str, int]:
    """Return {model: workers of the stage with the most of them, among the stages of this process that open it}."""
    most: dict[str, int] = {}
    for stage in stages:
        if stage.kind == "device":
            model = _model_of(plan, stage, heads[stage.name])
            most[model] = max(most.get(model, 1), _num_workers(plan, heads[stage.name]))
    return most


def _model_of(plan: Plan, stage: StageDefaults, head: str) -> str:
    """Return what tells the model of a device stage from others; of one that shares none with another stage its name."""
    model = plan.model_of(stage.task, stage.name)
    artifact = model.artifact or stage.model
    if not artifact or plan.stages[head].executor == "process":
        return stage.name
    rest = dataclasses.replace(model, artifact=artifact, options={})
    return repr((rest, sorted(model.options.items())))  # in whichever order they are written


def limit_library_threads() -> None:
    """Make OpenCV and OpenMP compute in the thread that calls them: the pipeline's workers are the parallelism.

    OpenMP reads its variable when a library that uses it is first loaded; later it has no effect.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import cv2  # imported here: a pipeline without images never loads it

    cv2.setNumThreads(1)


def limit_memory(num_bytes: int) -> None:
    """Let this process map so much more than it has now: whoever asks for more gets a MemoryError, or dies by its own hand.

    Only for a process that does nothing but one stage's work: the limit holds for everything in it.

    Args:
        num_bytes: Address space, not resident memory; libraries reserve more than they use.

    References:
        setrlimit(2), RLIMIT_AS.
    """
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + num_bytes
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
