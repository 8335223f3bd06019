"""The pipeline with one part replaced: what its throughput then is shows what the part costs.

Each variation is the user's pipeline under the user's Plan, run by the same runtime, with a source that gives the same jobs
again and again and a delivery that forgets.

References:
    DS-Analyzer's differential runs: Mohan, Phanishayee, Raniwala, Chidambaram, "Analyzing and mitigating data stalls in DNN
    training", VLDB 2021.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from headrace.base.plan import Plan
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.opening import groups
from headrace.profiler.isolation.bench import Bench
from headrace.profiler.isolation.curves import fit_line
from headrace.profiler.isolation.files import cold_files, warm_files
from headrace.profiler.isolation.inputs import Inputs, joined_at
from headrace.profiler.isolation.replay import Discard, Entry
from headrace.profiler.isolation.turns import NotPossible, Scenario
from headrace.profiler.isolation.twin import EmulatedTwin
from headrace.runs.formats.isolation import CurvePoint, StageAlone
from headrace.stages.stage import Stage


def build(bench: Bench, plan: Plan, inputs: Inputs, alone: Sequence[StageAlone]) -> dict[str, Scenario | str]:
    """Return each variation by name, or why it cannot be run.

    Args:
        bench: The pipeline.
        plan: As the user gave it.
        inputs: What was collected.
        alone: Stages alone; the emulated twin takes its times from them.
    """
    makers: dict[str, Callable[[], Scenario]] = {
        "as_is": lambda: as_is(bench, plan, inputs),
        "cached_items": lambda: cached_items(bench, inputs),
        "warm_files": lambda: warm_files(as_is(bench, plan, inputs)),
        "cold_files": lambda: cold_files(as_is(bench, plan, inputs)),
        "emulated_model": lambda: emulated_model(bench, plan, inputs, alone),
    }
    found: dict[str, Scenario | str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except NotPossible as reason:
            found[name] = str(reason)
    return found


def as_is(bench: Bench, plan: Plan, inputs: Inputs) -> Scenario:
    """Return the pipeline as it is."""
    if not inputs.num_delivered:
        raise NotPossible("not possible: no item came through the pipeline")
    return Scenario(
        name="as_is",
        pipeline=_discarding(bench, bench.pipeline.routes),
        plan=plan,
        entries=inputs.entries,
        copies=any(inputs.stages[stages[0].name].mutates for stages in bench.pipeline.routes.values()),
        says=f"the pipeline as it is, with {len(inputs.entries)} jobs over and over and nothing delivered",
    )


def cached_items(bench: Bench, inputs: Inputs) -> Scenario:
    """Return what remains of the pipeline from its first device stage on, fed with kept items from memory."""
    routes: dict[str, tuple[Stage, ...]] = {}
    entries: list[Entry] = []
    devices: list[str] = []
    for task, stages in bench.pipeline.routes.items():
        rest = from_device(stages)
        given = inputs.stages[rest[0].name].given if rest else []
        if not given:
            of_task = f" of task {task}" if task else ""
            why = f"no item{of_task} comes to its device stage" if rest else f"there is no device stage{of_task}"
            raise NotPossible(f"not possible: {why}")
        routes[task] = (*rest, stages[-1])
        devices.append(rest[0].name)
        entries += [Entry(one.job.id, one.value, task, one.job.attributes) for one in given]
    if not inputs.num_delivered:
        raise NotPossible("not possible: no item came through the pipeline")
    ratio = len(entries) / inputs.num_delivered if _is_inside_fan(bench, devices) else 1.0
    return Scenario(
        name="cached_items",
        pipeline=_discarding(bench, routes),
        plan=plan_from(bench, routes),
        entries=entries,
        says=f"{' and '.join(devices)} and what follows, fed from memory with what the stages before made",
        outputs_per_item=ratio,
        copies=any(inputs.stages[name].mutates for name in devices),
    )


def emulated_model(bench: Bench, plan: Plan, inputs: Inputs, alone: Sequence[StageAlone]) -> Scenario:
    """Return the pipeline with each device stage replaced by one that only takes its time."""
    devices = [stage for stage in bench.pipeline.stages if stage.kind == "device"]
    if not devices:
        raise NotPossible("not possible: there is no device stage")
    if all(bench.is_emulated(stage) for stage in devices):
        raise NotPossible("not run: the model is emulated already")
    # One that is emulated stays as it is.
    twins = {stage.name: _twin(bench, stage, inputs, alone) for stage in devices if not bench.is_emulated(stage)}
    routes = {
        task: tuple(twins.get(stage.name, stage) for stage in stages) for task, stages in bench.pipeline.routes.items()
    }
    lines = "; ".join(f"{name} {twin.in_words()}" for name, twin in twins.items())
    return dataclasses.replace(
        as_is(bench, plan, inputs),
        name="emulated_model",
        pipeline=_discarding(bench, routes),
        plan=_in_threads(plan, twins),
        says=f"the device only takes its time ({lines}) and leaves the CPU to the other stages; results are made up, so only "
        "the throughput counts",
    )


def from_device(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return a route's stages from the first device on, without the delivery; empty without a device.

    Of a device within a fan-out only those up to its join, because an item there is a child.
    """
    first = next((index for index, stage in enumerate(stages) if stage.kind == "device"), None)
    if first is None:
        return ()
    outer = next(
        (
            joined_at(stages, index)
            for index in range(first - 1, -1, -1)
            if stages[index].role == "fan_out" and joined_at(stages, index) > first
        ),
        len(stages) - 1,
    )
    return tuple(stages[first:outer])


def plan_from(bench: Bench, routes: Mapping[str, Sequence[Stage]]) -> Plan:
    """Return the resolved Plan for a pipeline that was cut.

    It is without the stages that are gone; the first stage has the workers of the station that it shared; nothing else limits
    what is in flight.
    """
    plan = bench.plan
    remaining = {stage.name: plan.stages[stage.name] for stages in routes.values() for stage in stages}
    for task, stages in routes.items():
        first = stages[0].name
        for group in groups(bench.pipeline.routes[task], plan):
            if first in {stage.name for stage in group}:
                head = plan.stages[group[0].name]
                workers = plan.source.receivers if head.executor == "inline" else head.workers
                executor = "thread" if head.executor == "inline" else head.executor
                remaining[first] = dataclasses.replace(plan.stages[first], executor=executor, workers=workers)
    return dataclasses.replace(plan, stages=remaining, source=dataclasses.replace(plan.source, max_in_flight=None))


def _discarding(bench: Bench, routes: Mapping[str, Sequence[Stage]]) -> Pipeline:
    """Return a pipeline with these routes, the delivery at their ends replaced by one that forgets."""
    pipeline = copy.copy(bench.pipeline)
    pipeline.routes = {task: tuple(stages) for task, stages in routes.items()}
    return pipeline.delivering_to(Discard(bench.pipeline.delivery.default_workers))


def _is_inside_fan(bench: Bench, devices: Sequence[str]) -> bool:
    for stages in bench.pipeline.routes.values():
        depth = 0
        for stage in stages:
            depth += {"fan_out": 1, "join": -1}.get(stage.role, 0)
            if stage.name in devices and depth:
                return True
    return False


def _twin(bench: Bench, stage: Stage, inputs: Inputs, alone: Sequence[StageAlone]) -> EmulatedTwin:
    curve = next((one.curve for one in alone if one.name == stage.name), ())
    # Without the time in which it waited for a core: that is not the device's, and noise of the machine.
    costs = {
        point.batch_size: point.service - (point.run_delay or 0.0) * point.batch_size
        for point in curve
        if point.workers == 1 and point.batch_size
    }
    results = inputs.stages[stage.name].results
    if not costs or not results:
        raise NotPossible(f"not possible: what {stage.name} costs alone was not measured")
    launch, item, misfit = fit_line(costs)
    longer = _longer_side_by_side(curve, max(costs), bench.workers(stage))
    return EmulatedTwin(stage, launch * longer, item * longer, misfit, results)


def _longer_side_by_side(curve: Sequence[CurvePoint], batch_size: int, workers: int) -> float:
    """Return how many times longer a call takes with so many at once; as many times as there are, where it was not measured."""
    rates = {point.workers: point.throughput for point in curve if point.batch_size == batch_size}
    return max(1.0, workers * rates[1] / rates[workers]) if workers in rates else float(workers)


def _in_threads(plan: Plan, twins: Mapping[str, Stage]) -> Plan:
    # One that takes no CPU needs no process, and several would make as many devices.
    stages = {
        name: one.moved_to("thread", one.workers) if name in twins and one.executor == "process" else one
        for name, one in plan.stages.items()
    }
    return dataclasses.replace(plan, stages=stages)
