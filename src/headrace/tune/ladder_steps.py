"""The steps from "everything on one thread" to a given Plan: what each of them changes, and nothing else.

Every rung is the full Plan with some of it taken back: queues, time limits and the model's options stay as they are, so that a
step changes one thing. A step that would change nothing (no images, no batch) is left out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.base.plan_changes import list_changed_settings
from headrace.engines import traits_of
from headrace.pipeline.definition import Pipeline
from headrace.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step up."""

    name: str
    explanation: str
    plan: Plan
    """Resolved: this step and all before it."""
    without: Plan | None
    """Resolved: the full Plan with this step alone taken back; None for the first step, which takes nothing back."""
    settings: tuple[str, ...]
    """What this step changes of the one before, `KEY=VALUE`."""


#: Takes one step back: returns a Plan that is slower, or the same where the step does not apply.
_TakeBack = Callable[[Plan, Pipeline], Plan]


def find_steps(pipeline: Pipeline, full: Plan) -> list[Step]:
    """Return the steps that apply, from the sequential Plan to the full one; with one step only there is nothing to climb.

    Args:
        pipeline: What is run.
        full: Resolved.
    """
    lower = full
    plans = [full]
    for _, _, take_back in reversed(_STEPS):
        lower = take_back(lower, pipeline)
        plans.insert(0, lower)
    steps = [
        Step(
            name="sequential",
            explanation="everything on one thread, one item after the other",
            plan=_sequential(plans[0], pipeline),
            without=None,
            settings=(),
        )
    ]
    for (name, explanation, take_back), plan in zip(_STEPS, plans[1:], strict=True):
        settings = list_changed_settings(steps[-1].plan, plan)
        if settings:
            without = take_back(full, pipeline)
            steps.append(Step(name=name, explanation=explanation, plan=plan, without=without, settings=settings))
    return steps


# --- one step back each


def _sequential(plan: Plan, pipeline: Pipeline) -> Plan:
    back = {name: _inline(stage) for name, stage in plan.stages.items()}
    return _replace_stages(_one_receiver(plan), _possible(back, plan, pipeline))


def _remove_threads(plan: Plan, pipeline: Pipeline) -> Plan:
    """Let downloads wait in the one receiver, and deliveries in the worker of the stage before."""
    back = {stage.name: _inline(plan.stages[stage.name]) for stage in pipeline.stages if stage.kind == "io"}
    return _replace_stages(_one_receiver(plan), _possible(back, plan, pipeline))


def _remove_overlap(plan: Plan, pipeline: Pipeline) -> Plan:
    """Let one worker do all that does not wait for others: computing and the device take turns."""
    back = {}
    for route in pipeline.routes.values():
        for before, stage in itertools.pairwise((None, *route)):
            if stage is None or stage.kind == "io":
                continue
            if plan.stages[stage.name].executor == "inline" and _is_received(before, plan):
                continue  # the receiver runs it, and nothing overlaps
            is_first = before is None or before.kind == "io"
            back[stage.name] = (_one_worker if is_first else _inline)(plan.stages[stage.name])
    return _replace_stages(plan, _possible(back, plan, pipeline))


def _is_received(stage: Stage | None, plan: Plan) -> bool:
    return stage is None or plan.stages[stage.name].executor == "inline"


def _remove_batch(plan: Plan, pipeline: Pipeline) -> Plan:
    back = {
        stage.name: dataclasses.replace(plan.stages[stage.name], batch=1, max_wait_seconds=0.0)
        for stage in pipeline.stages
        if stage.kind == "device"
    }
    return _replace_stages(plan, back)


def _remove_scale(plan: Plan, pipeline: Pipeline) -> Plan:
    if not any(stage.work == "decode" for stage in pipeline.stages):
        return plan
    return dataclasses.replace(plan, decode=dataclasses.replace(plan.decode, scale="full"))


def _remove_engine(plan: Plan, pipeline: Pipeline) -> Plan:
    """Let the default engine run the module's own model with the default threads."""
    models = {task: _default_model(model) for task, model in plan.models.items()}
    return dataclasses.replace(plan, model=_default_model(plan.model), models=models)


def _default_model(model: ModelPlan) -> ModelPlan:
    if traits_of(model.engine).is_emulated:
        return model  # its options say what the device is, not how it is used
    return ModelPlan()


#: Every step after the sequential one, in the order in which they are climbed.
_STEPS: tuple[tuple[str, str, _TakeBack], ...] = (
    ("threads", "downloads and deliveries wait in workers of their own", _remove_threads),
    ("overlap", "every stage has workers of its own: they compute while the device does", _remove_overlap),
    ("batch", "the device takes several items at a time", _remove_batch),
    ("decode at scale", "images are decoded at the smallest scale that covers what the model needs", _remove_scale),
    ("engine", "another engine, model file or number of threads", _remove_engine),
)


def _one_receiver(plan: Plan) -> Plan:
    return dataclasses.replace(plan, source=dataclasses.replace(plan.source, receivers=1))


def _inline(stage: StagePlan) -> StagePlan:
    if stage.executor == "inline":
        return stage
    return stage.with_executor("inline", 1)


def _one_worker(stage: StagePlan) -> StagePlan:
    return stage.with_executor("thread", 1)


def _possible(back: dict[str, StagePlan], plan: Plan, pipeline: Pipeline) -> dict[str, StagePlan]:
    """Give one worker to what cannot be inline: a join, and what follows a fan-out."""
    for route in pipeline.routes.values():
        for before, stage in itertools.pairwise(route):
            if stage.name in back and (stage.role == "join" or before.role == "fan_out"):
                back[stage.name] = _one_worker(plan.stages[stage.name])
    return back


def _replace_stages(plan: Plan, back: Mapping[str, StagePlan]) -> Plan:
    return dataclasses.replace(plan, stages={**plan.stages, **back})
