"""A pipeline in parts: the Plan as resolved on this machine, and how a worker opens one stage without its neighbours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.base.clock import SystemClock
from headrace.base.plan import Executor, Plan, resolve
from headrace.engines import traits_of
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.opening import GroupSpec, groups, open_group
from headrace.pipeline.remote import RemoteGroup
from headrace.pipeline.stage_defaults import stage_defaults
from headrace.pipeline.thread_budget import ThreadBudget, budget, usable_cores
from headrace.pipeline.worker import RunsItems
from headrace.stages.emulated import EmulatedStage
from headrace.stages.stage import Stage, StageContext


class StageByItself(Stage):
    """A stage without its neighbours, which still knows the one that follows in its worker.

    A decoder that knows that the same worker resizes next keeps its buffer, which saves a third of its time.
    """

    def __init__(self, stage: Stage, next_stage: Stage | None) -> None:
        super().__init__(stage.name, task=stage.task)
        self.kind = stage.kind
        self.role = stage.role
        self._stage = stage
        self._next_stage = next_stage

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Open the stage as its worker would."""
        return self._stage.open(dataclasses.replace(context, next_stage=self._next_stage))


@dataclass(frozen=True)
class PipelineParts:
    """A pipeline in parts.

    Attributes:
        pipeline: The whole.
        plan: Resolved.
        threads: How many threads each model call has.
        cores: Cores that this process may use.
        executors: By stage, `thread` or `process`: an inline stage runs where its station does.
        workers: By stage, workers that the Plan gives to it: an inline stage has those of its station.
        next_stages: By stage, the one that the same worker calls next; None where the result leaves the worker.
    """

    pipeline: Pipeline
    plan: Plan
    threads: ThreadBudget
    cores: int
    executors: Mapping[str, Executor]
    workers: Mapping[str, int]
    next_stages: Mapping[str, Stage | None]

    @classmethod
    def of(cls, pipeline: Pipeline, plan: Plan) -> PipelineParts:
        """Return the parts of a pipeline under a Plan.

        Raises:
            SettingsError: If the Plan does not fit the pipeline.
        """
        cores = usable_cores()
        defaults = stage_defaults(pipeline, plan)  # as a run resolves it, so that the Plan's id is the run's
        resolved = resolve(plan, defaults, cores)
        executors: dict[str, Executor] = {}
        workers: dict[str, int] = {}
        next_stages: dict[str, Stage | None] = {}
        for route in pipeline.routes.values():
            for group in groups(route, resolved):
                head = resolved.stages[group[0].name]
                for stage, following in zip(group, (*group[1:], None), strict=True):
                    executors[stage.name] = "process" if head.executor == "process" else "thread"
                    is_received = head.executor == "inline"
                    workers[stage.name] = resolved.source.receivers if is_received else head.workers or 1
                    next_stages[stage.name] = following
        threads = budget(resolved, defaults, cores)
        return cls(pipeline, resolved, threads, cores, executors, workers, next_stages)

    def batch(self, stage: Stage) -> int:
        """Return the largest batch of a stage; 1 where it takes items one by one."""
        return self.plan.stages[stage.name].batch or 1

    def is_emulated(self, stage: Stage) -> bool:
        """Return whether a device stage only takes time."""
        return isinstance(stage, EmulatedStage) or self.has_emulated_model(stage)

    def has_emulated_model(self, stage: Stage) -> bool:
        """Return whether the model that a stage would open only takes time."""
        return traits_of(self.plan.model_of(stage.task, stage.name).engine).is_emulated

    def open(self, stage: Stage, worker: int) -> RunsItems:
        """Open a stage by itself, in this thread or in a process of its own; then pass it to `close`.

        Raises:
            HeadraceError: If it cannot be opened.
        """
        spec = GroupSpec(
            (StageByItself(stage, self.next_stages[stage.name]),),
            self.plan,
            worker,
            self.threads.model_threads.get(stage.name, 1),
            self.batch(stage),
            model_calls=self.threads.model_calls.get(stage.name, 1),
        )
        if self.executors[stage.name] == "process":
            return RemoteGroup(spec, self.plan.stages[stage.name].time_limit_seconds, {}, [])
        return open_group(spec, SystemClock()).group


def close(opened: RunsItems) -> None:
    """Let the process of an opened stage end, if it has one."""
    if isinstance(opened, RemoteGroup):
        opened.close()
