"""The ladder that a run goes down where its Plan's `[budget]` does not suffice: each rung is a Plan that asks for less.

So spans say by their `plan_id` on which rung they were, as with any other Plan. A rung may lower what can be lowered while a
run goes on: batches, workers, jobs in flight, frames that are taken of live streams; or name another variant of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headrace.base.errors import SettingsError
from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.pipeline.following import in_place

_CHANGEABLE = (
    "STAGE.batch, STAGE.workers, source.max_in_flight, source.every, or another file, engine or options of a model"
)


def rungs_of(plan: Plan) -> list[Plan]:
    """Return the Plans of the ladder's rungs, the first one that is stepped down to first; none without a budget.

    Args:
        plan: Resolved.

    Raises:
        SettingsError: If a rung changes what cannot change while a run goes on, or does not ask for less.
    """
    if plan.budget is None or plan.budget.is_open:
        return []
    if not plan.budget.ladder:
        return list(_halved(plan))
    rungs = []
    for rung in plan.budget.ladder:
        try:
            lower = plan.with_settings([rung])
        except SettingsError as error:
            raise SettingsError(f"budget.ladder: {rung!r}: {error}") from None
        _check_lower(rung, plan, lower)
        rungs.append(lower)
        plan = lower
    return rungs


def _check_lower(rung: str, before: Plan, after: Plan) -> None:
    """Raise SettingsError unless all that differs can be lowered in a run, and is."""
    if set(after.stages) != set(before.stages):
        unknown = ", ".join(sorted(set(after.stages) - set(before.stages)))
        raise SettingsError(
            f"budget.ladder: {rung!r}: there is no stage {unknown}; there are {', '.join(before.stages)}"
        )
    pairs = [(before.source.max_in_flight, after.source.max_in_flight)]
    pairs.append(
        (-(before.source.every or 1), -(after.source.every or 1))
    )  # the more are left out, the less there is to do
    for name, stage in after.stages.items():
        pairs += [(before.stages[name].batch, stage.batch), (before.stages[name].workers, stage.workers)]
    changed = [(one, other) for one, other in pairs if one != other]
    if _without(before) != _without(after):
        raise SettingsError(f"budget.ladder: {rung!r} cannot change while a run goes on; a rung is {_CHANGEABLE}")
    is_other_model = (after.model, after.models) != (before.model, before.models)
    if not (changed or is_other_model) or any(
        other is None or (one is not None and other > one) for one, other in changed
    ):
        raise SettingsError(
            f"budget.ladder: {rung!r} asks for no less than the rung before it; a rung is {_CHANGEABLE}"
        )


def _without(plan: Plan) -> Plan:
    """Return a Plan without what a rung may change."""
    stages = {name: dataclasses.replace(stage, batch=None, workers=None) for name, stage in plan.stages.items()}
    source = dataclasses.replace(plan.source, max_in_flight=None, every=None)
    models = {key: _what_stays(model) for key, model in plan.models.items()}
    return dataclasses.replace(plan, stages=stages, source=source, model=_what_stays(plan.model), models=models)


def _what_stays(model: ModelPlan) -> ModelPlan:
    """Return the settings of a model that workers were started for, or that items under way depend on."""
    return in_place(ModelPlan(threads=model.threads, input_side=model.input_side), model)


def _halved(plan: Plan) -> Iterator[Plan]:
    """Yield Plans with half as many jobs in flight and half as large batches each, down to what the workers have in hand."""
    held = sum((stage.queue_items or 1) + _in_hand(stage) for stage in plan.stages.values())
    in_flight = min(held, plan.source.max_in_flight or held)
    while True:
        stages = {
            name: dataclasses.replace(stage, batch=max(1, (stage.batch or 1) // 2))
            for name, stage in plan.stages.items()
        }
        in_hand = sum(map(_in_hand, stages.values()))
        lower = min(in_flight, max(in_hand, in_flight // 2))
        if lower == in_flight and stages == plan.stages:
            return
        in_flight = lower
        source = dataclasses.replace(plan.source, max_in_flight=in_flight)
        plan = dataclasses.replace(plan, stages=stages, source=source)
        yield plan


def _in_hand(stage: StagePlan) -> int:
    return 0 if stage.executor == "inline" else (stage.workers or 1) * (stage.batch or 1)
