"""The Plan of a changed run: settings that the recorded Plan had by default follow the change, as they would in the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan, StageDefaults, StagePlan, model_key, resolve
from headrace.base.settings import check, unknown_key
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


def check_change(change: Change, plan: Plan, stages: Sequence[StageDemands], *, is_open: bool) -> None:
    """Raise SettingsError if a change names what is not there, or is impossible.

    Args:
        change: What is done otherwise.
        plan: As recorded.
        stages: What ran.
        is_open: Whether jobs came by themselves.
    """
    names = [stage.name for stage in stages]
    for name in (
        *change.speedups,
        *change.drop,
        *change.cache_hits,
        *change.every,
        *change.on_device,
        *change.cost_curves,
    ):
        if name not in names and name != "receiving":
            raise unknown_key(name, "the stages of this run", names)
    for name, factor in change.speedups.items():
        check(factor > 0 and np.isfinite(factor), f"speed-up of {name}", factor, "a factor above 0")
    for name, share in change.cache_hits.items():
        check(0 <= share <= 1, f"cache hits of {name}", share, "a share from 0 to 1")
    for name, number in change.every.items():
        check(number >= 1, f"every item of {name}", number, "a whole number >= 1")
    for name, seconds in change.on_device.items():
        check(seconds > 0 and np.isfinite(seconds), f"seconds of {name} on the device", seconds, "more than 0")
        stage = next(one for one in stages if one.name == name)
        takes_items = stage.info.kind == "cpu" and stage.info.role == "map"
        check(takes_items, "stage moved to the device", name, "a stage of kind cpu that maps items one by one")
    check(change.cores is None or change.cores > 0, "cores", change.cores, "more than 0")
    check(change.devices is None or change.devices >= 1, "devices", change.devices, "a whole number >= 1")
    has_device = any(stage.is_exclusive and not plan.model_of(stage.info.task, stage.name).uses for stage in stages)
    allowed = (
        "only where a model runs on a device of its own; here it runs on the cores (--cores), or uses [resources] of the "
        "Plan (--set resources.NAME=N)"
    )
    check(change.devices is None or has_device, "devices", change.devices, allowed)
    rate = change.arrival_rate
    check(rate is None or rate > 0, "arrival rate", rate, "more than 0 jobs per second")
    deadline = change.deadline_seconds
    check(deadline is None or deadline > 0, "deadline", deadline, "more than 0 seconds")
    open_only = "only where jobs come by themselves; say how many: --arrival-rate 100/s"
    check(deadline is None or rate is not None or is_open, "deadline", deadline, open_only)
    for name in change.drop:
        role = next(stage.info.role for stage in stages if stage.name == name)
        check(role == "map", "dropped stage", name, f"a stage that maps; {name} is a {role}")


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
            own = [one for one in change.settings if one.strip().removeprefix("stages.").startswith(what)]
            raise CannotReplay(
                f"{what} is changed, and what {name} costs then was not measured; measure it (headrace profile ... "
                f"{' '.join(f'--set {one}' for one in own) or '--set ...'}), or say it: --speedup {name}=TIMES{curve}"
            )


def _other_work(recorded: Plan, changed: Plan, demands: StageDemands) -> str:
    """Return the setting that makes a stage do other work than was recorded; empty if there is none."""
    name = demands.name
    for one in (name, demands.info.follows):
        if one in recorded.stages and recorded.stages[one].options != changed.stages[one].options:
            return f"{one}.options"
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
