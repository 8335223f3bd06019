"""The Plan of a changed run: settings that the recorded Plan had by default follow the change, as they would in the runtime."""

from __future__ import annotations

import dataclasses

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan, StageDefaults, StagePlan, resolve
from headrace.diagnose.replay.needs import StageNeeds


def changed_plan(recorded: Plan, settings: tuple[str, ...], stages: tuple[StageNeeds, ...], cores: int) -> Plan:
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
            name=needs.name,
            kind=needs.info.kind,  # type: ignore[arg-type]
            executor=needs.info.executor,  # type: ignore[arg-type]
            task=needs.info.task,
        )
        for needs in stages
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


def _with_workers(wanted: StagePlan, recorded: StagePlan | None) -> StagePlan:
    """Return the stage with threads, if it ran inline and is given workers now: it is meant to have them."""
    if recorded is None or wanted.executor != "inline" or recorded.executor != "inline":
        return wanted
    return wanted if wanted.workers == recorded.workers else dataclasses.replace(wanted, executor="thread")


def _without_defaults(
    recorded: Plan, name: str, stage: StagePlan, defaults: list[StageDefaults], cores: int
) -> StagePlan:
    known = [one for one in defaults if one.name == name]
    if not known:
        return stage
    bare = dataclasses.replace(recorded, stages={name: dataclasses.replace(stage, queue_items=None)})
    by_default = resolve(bare, known, cores).stages[name].queue_items
    return dataclasses.replace(stage, queue_items=None if stage.queue_items == by_default else stage.queue_items)


def _check(plan: Plan, stages: tuple[StageNeeds, ...]) -> None:
    for needs in stages:
        settings = plan.stages[needs.name]
        if settings.executor == "process" and needs.info.role != "map":
            raise SettingsError(
                f"stage {needs.name} ({needs.info.role}) cannot run in a process; allowed: thread or inline"
            )
        if settings.executor == "inline" and needs.info.role == "join":
            raise SettingsError(
                f"stages.{needs.name}.executor = 'inline' is not possible: a join waits for all children"
            )
