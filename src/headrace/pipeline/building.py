"""Builds the stations of a run, and the way of each task's jobs through them, from a pipeline and its resolved Plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.base.protocols import Instrument, Source
from headrace.engines import traits_of
from headrace.pipeline.caching import StageCaches, open_caches
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.model_slots import ModelSlots
from headrace.pipeline.opening import GroupSpec, groups
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.station import Station
from headrace.pipeline.thread_budget import ThreadBudget
from headrace.pipeline.warm_up import WarmUp
from headrace.stages.stage import Stage

Routes = dict[str, tuple[Station, ...]]


@dataclass(frozen=True, slots=True)
class Equipment:
    """What workers open their stages with, beside the Plan."""

    budget: ThreadBudget
    """Threads per model call."""
    instruments: Sequence[Instrument] = ()
    """What goes around the calls of the stages."""
    warm_up: WarmUp = field(default_factory=WarmUp)
    """What is measured at warm-up beyond the Plan's own batch sizes."""
    slots: ModelSlots | None = None
    """Where models are put that may change or have company; None: they are called as they are."""


def build_stations(pipeline: Pipeline, context: RunContext, equipment: Equipment) -> tuple[list[Station], Routes]:
    """Return the stations, and {task: the stations that its jobs pass}; tasks share what they have in common.

    Raises:
        SettingsError: If the Plan does not fit the pipeline.
    """
    caches = open_caches(pipeline, context.plan, _plan_for_workers(context.plan, pipeline.source))
    stations: dict[tuple[int, ...], Station] = {}
    routes: Routes = {}
    for task, stages in pipeline.routes.items():
        _check_streams(stages, context.plan)
        route = []
        for number, group in enumerate(groups(stages, context.plan)):
            key = tuple(id(stage) for stage in group)
            if key not in stations:
                is_first = number == 0
                own = {stage.name: caches[stage.name] for stage in group if stage.name in caches}
                stations[key] = _build_station(group, pipeline.source, context, equipment, own, is_first=is_first)
            route.append(stations[key])
        routes[task] = tuple(route)
    return list(stations.values()), routes


def _build_station(
    group: tuple[Stage, ...],
    source: Source,
    context: RunContext,
    equipment: Equipment,
    caches: Mapping[str, StageCaches],
    *,
    is_first: bool,
) -> Station:
    plan = context.plan
    _check_group(group, plan)
    _check_order(group, plan)
    devices = [stage for stage in group if stage.kind == "device"]
    spec = GroupSpec(
        group,
        _plan_for_workers(plan, source),
        worker=0,
        model_threads=equipment.budget.model_threads[devices[0].name] if devices else 1,
        max_batch=max((plan.stages[stage.name].batch or 1 for stage in devices), default=1),
        instruments=tuple(equipment.instruments),
        warm_up=equipment.warm_up,
        slots=equipment.slots,
        model_calls=equipment.budget.model_calls[devices[0].name] if devices else 1,
        uses=_uses(devices, plan),
        caches=caches,
    )
    is_inline = is_first and plan.stages[group[0].name].executor == "inline"
    runs_in_place = not is_first and group[0].is_instant and not plan.run.ordered
    return Station(context, spec, has_queue=not (is_inline or runs_in_place), runs_in_place=runs_in_place)


def _uses(devices: Sequence[Stage], plan: Plan) -> dict[str, int]:
    """Return what a worker needs of the Plan's resources: as much of each as the model that takes most of it."""
    found: dict[str, int] = {}
    for stage in devices:
        for name, amount in plan.model_of(stage.task, stage.name).uses.items():
            found[name] = max(amount, found.get(name, 0))
    return found


def _plan_for_workers(plan: Plan, source: Source) -> Plan:
    """Return what workers read: jobs that come over a network name no files unless the Plan says which."""
    if plan.network.files is not None or not source.is_remote:
        return plan
    return dataclasses.replace(plan, network=dataclasses.replace(plan.network, files=[]))


def _check_group(group: Sequence[Stage], plan: Plan) -> None:
    for position, stage in enumerate(group):
        if stage.role == "join" and position > 0:
            raise SettingsError(
                f"stages.{stage.name}.executor = 'inline' is not possible: a join waits for all children"
            )
        if stage.role == "fan_out" and position < len(group) - 1:
            after = group[position + 1].name
            raise SettingsError(
                f"stages.{after}.executor = 'inline' is not possible after the fan_out stage {stage.name}"
            )
    head = plan.stages[group[0].name]
    devices = [(stage, plan.model_of(stage.task, stage.name)) for stage in group if stage.kind == "device"]
    for stage, model in devices:
        if model.devices is not None and not traits_of(model.engine).takes_devices:
            raise SettingsError(
                f"devices = {list(model.devices)} of the model of {stage.name} is not possible: the engine {model.engine} "
                "opens models on one device; leave it out"
            )
    if head.executor != "process":
        return
    for stage in group:
        if stage.role != "map":
            raise SettingsError(f"stage {stage.name} ({stage.role}) cannot run in a process; allowed: thread or inline")
        if _uses([stage], plan):
            raise SettingsError(
                f"stages.{group[0].name}.executor = 'process' is not possible where the model of {stage.name} uses resources "
                f"({', '.join(_uses([stage], plan))}): threads of one process share them; allowed: thread or inline"
            )
    for _, model in devices:
        num_devices = len(model.devices or (0,))
        if traits_of(model.engine).is_emulated and (head.workers or 1) > num_devices:
            raise SettingsError(
                f"stages.{group[0].name}.workers = {head.workers} processes would make as many emulated devices; use "
                f"{num_devices}, or threads"
            )


def _check_streams(stages: Sequence[Stage], plan: Plan) -> None:
    """Raise SettingsError unless each stage that keeps streams can have their items in order."""
    inside = behind = ""
    for stage in stages:
        settings, where = plan.stages[stage.name], f"stages.{stage.name}"
        inside = stage.name if stage.role == "fan_out" else "" if stage.role == "join" else inside
        behind = behind if settings.executor == "inline" else ""
        if behind and not stage.keeps_streams:
            raise SettingsError(
                f"{where}.executor = 'inline' is not possible behind {behind}, which keeps what it knows of each stream: "
                "another try would show it a frame twice; allowed: 'thread'"
            )
        if not stage.keeps_streams:
            continue
        behind = stage.name
        if plan.source.receivers > 1:
            raise SettingsError(
                f"source.receivers = {plan.source.receivers} is not possible with {stage.name}, which gets the items of a "
                "stream in the order of receipt: several have none; allowed: 1"
            )
        if inside:
            raise SettingsError(
                f"stage {stage.name} stands between the fan_out stage {inside} and its join; it keeps what it knows of each "
                "stream and takes whole items in order: put it behind the join"
            )
        if settings.executor != "thread" or (settings.workers or 1) > 1:
            which = "executor" if settings.executor != "thread" else "workers"
            value = repr(settings.executor) if which == "executor" else settings.workers
            raise SettingsError(
                f"{where}.{which} = {value} is not possible: it keeps what it knows of each stream, in one worker of its own, "
                "so that items of a stream come in order; allowed: executor 'thread' with 1 worker"
            )


def _check_order(group: Sequence[Stage], plan: Plan) -> None:
    if not plan.run.ordered or group[-1].role != "deliver":
        return
    head = plan.stages[group[0].name]
    where = f"stages.{group[0].name}"
    workers = plan.source.receivers if head.executor == "inline" else head.workers
    if (workers or 1) > 1:
        setting = "source.receivers" if head.executor == "inline" else f"{where}.workers"
        raise SettingsError(
            f"{setting} = {workers} is not possible with run.ordered: several would overtake; allowed: 1"
        )
    if any((plan.stages[stage.name].batch or 1) > 1 for stage in group):
        raise SettingsError(
            f"{where} is not possible with run.ordered and a batch above 1: a result tried again would come after those of "
            "its batch; give deliver a queue of its own"
        )
