"""The Plan of a changed run: settings that the recorded Plan had by default follow the change, as they would in the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan, StageDefaults, StagePlan, model_key, resolve
from headrace.diagnose.replay.demands import CannotReplay, StageDemands
from headrace.runs.formats.prediction import Change

#: Settings whose effect is not simulated: they bound memory, time and failures, and seldom decide the throughput.
_STAGE_SETTINGS = ("queue_bytes", "attempts", "retry_budget_seconds", "time_limit_seconds", "memory_limit_bytes")
_OTHER_SETTINGS = (
    (
        "decode",
        ("formats", "max_bytes", "max_pixels", "max_side", "max_frames", "max_scans", "max_decoded_bytes"),
    ),
    ("source", ("wait_seconds", "visibility_seconds", "max_receives")),
    ("run", ("warm_up", "grace_seconds")),
)


def change_plan(recorded: Plan, settings: tuple[str, ...], stages: tuple[StageDemands, ...], cores: int) -> Plan:
    """Return the recorded Plan with settings replaced, resolved as the runtime would.

    A recorded Plan is resolved: every queue has its bound. A bound that is just what the runtime gives by default is taken for
    a default, so that 32 workers get the longer queue that they would get.

    Args:
        recorded: The Plan as it ran.
        settings: `KEY=VALUE` each.
        stages: What ran.
        cores: Cores that the changed run may use.

    Raises:
        SettingsError: If a setting is unknown or impossible.
    """
    defaults = [
        StageDefaults(
            name=demands.name,
            kind=demands.info.kind,  # type: ignore[arg-type]
            executor=demands.info.executor,  # type: ignore[arg-type]
            task=demands.info.task,
            may_carry=demands.info.kind == "io",  # more is not noted
        )
        for demands in stages
    ]
    open_plan = dataclasses.replace(
        recorded,
        stages={
            name: _without_defaults(recorded, name, stage, defaults, cores) for name, stage in recorded.stages.items()
        },
    )
    wanted = open_plan.with_settings(settings)
    wanted = dataclasses.replace(
        wanted, stages={name: _with_workers(stage, recorded.stages.get(name)) for name, stage in wanted.stages.items()}
    )
    plan = resolve(wanted, defaults, cores)
    _check(plan, stages)
    return plan


def not_simulated(recorded: Plan, changed: Plan) -> list[str]:
    """Return the settings that were changed and that the simulation does not know."""
    found = [
        f"{name}.{key}"
        for name, stage in changed.stages.items()
        for key in _STAGE_SETTINGS
        if name in recorded.stages and getattr(stage, key) != getattr(recorded.stages[name], key)
    ]
    for table, keys in _OTHER_SETTINGS:
        before, after = getattr(recorded, table), getattr(changed, table)
        found += [f"{table}.{key}" for key in keys if getattr(before, key) != getattr(after, key)]
    sides = _input_sides(recorded)
    return found + [table for table, side in _input_sides(changed).items() if side != sides.get(table)]


def _input_sides(plan: Plan) -> dict[str, int | None]:
    """Return how large the images of each model are: what making others saves before the model is not simulated."""
    tables = {"model": plan.model, **{f"models.{task}": model for task, model in plan.models.items()}}
    return {f"{table}.input_side": model.input_side for table, model in tables.items()}


def check_costs(recorded: Plan, changed: Plan, change: Change, stages: Sequence[StageDemands]) -> None:
    """Raise CannotReplay where a changed setting makes a stage do other work, unless the change says what that costs."""
    for demands in stages:
        name = demands.name
        if name in change.speedups or name in change.cost_curves or name in change.drop:
            continue
        what = _other_work(recorded, changed, demands)
        if what:
            curve = f" or --curve {name}=RUN" if demands.info.kind == "device" else ""
            raise CannotReplay(
                f"{what} is changed, and what {name} costs then was not measured; measure it (headrace profile ... --set ...), "
                f"or say it: --speedup {name}=TIMES{curve}"
            )


def _other_work(recorded: Plan, changed: Plan, demands: StageDemands) -> str:
    """Return the setting that makes a stage do other work than was recorded; empty if there is none."""
    name = demands.name
    if recorded.stages[name].options != changed.stages[name].options:
        return f"{name}.options"
    if demands.info.work == "decode" and recorded.decode.decoder != changed.decode.decoder:
        return "decode.decoder"
    if demands.info.kind != "device":
        return ""
    key = model_key(demands.info.task, name)
    before, after = recorded.model_of(key), changed.model_of(key)
    keys = (
        ["engine", "artifact", "input_side"] if demands.is_emulated else ["engine", "artifact", "input_side", "options"]
    )
    table = f"models.{key}" if key in changed.models else "model"
    return next((f"{table}.{key}" for key in keys if getattr(before, key) != getattr(after, key)), "")


def _with_workers(wanted: StagePlan, recorded: StagePlan | None) -> StagePlan:
    """Return the stage with threads, if it ran inline and is given workers now: it is meant to have them."""
    if recorded is None or wanted.executor != "inline" or recorded.executor != "inline":
        return wanted
    return wanted if wanted.workers == recorded.workers else dataclasses.replace(wanted, executor="thread")


def _without_defaults(
    recorded: Plan, name: str, stage: StagePlan, defaults: list[StageDefaults], cores: int
) -> StagePlan:
    if name not in {one.name for one in defaults}:
        return stage
    # Without models, which have no queue and may belong to stages that are not known here.
    stages = {one.name: recorded.stages[one.name] for one in defaults if one.name in recorded.stages}
    stages[name] = dataclasses.replace(stage, queue_items=None)
    bare = dataclasses.replace(recorded, stages=stages, models={}, model=type(recorded.model)())
    by_default = resolve(bare, defaults, cores).stages[name].queue_items
    return dataclasses.replace(stage, queue_items=None if stage.queue_items == by_default else stage.queue_items)


def _check(plan: Plan, stages: tuple[StageDemands, ...]) -> None:
    for demands in stages:
        settings = plan.stages[demands.name]
        if settings.executor == "process" and demands.info.role != "map":
            raise SettingsError(
                f"stage {demands.name} ({demands.info.role}) cannot run in a process; allowed: thread or inline"
            )
        if settings.executor == "inline" and demands.info.role == "join":
            raise SettingsError(
                f"stages.{demands.name}.executor = 'inline' is not possible: a join waits for all children"
            )
