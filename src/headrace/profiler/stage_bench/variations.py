"""The pipeline with one part replaced: how its throughput changes shows what the part costs.

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
from headrace.base.records import Job
from headrace.engines.emulated import EmulatedOptions
from headrace.pipeline.definition import Pipeline
from headrace.profiler.stage_bench.background import Discard
from headrace.profiler.stage_bench.curves import fit_line
from headrace.profiler.stage_bench.emulated_device import EmulatedDevice
from headrace.profiler.stage_bench.files import cold_files, warm_files
from headrace.profiler.stage_bench.inputs import Inputs, find_join
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts
from headrace.profiler.stage_bench.variation_runs import NotPossible, Scenario
from headrace.runs.formats.isolation import CurvePoint, StageAlone
from headrace.stages.stage import Stage


def build(parts: PipelineParts, plan: Plan, inputs: Inputs, alone: Sequence[StageAlone]) -> dict[str, Scenario | str]:
    """Return each variation by name, or why it cannot be run.

    Args:
        parts: The pipeline.
        plan: As the user gave it.
        inputs: What was recorded.
        alone: Stages alone; the emulated device takes its times from them.
    """
    makers: dict[str, Callable[[], Scenario]] = {
        "as_is": lambda: as_is(parts, plan, inputs),
        "cached_items": lambda: cached_items(parts, inputs),
        "warm_files": lambda: warm_files(as_is(parts, plan, inputs)),
        "cold_files": lambda: cold_files(as_is(parts, plan, inputs)),
        "emulated_model": lambda: emulated_model(parts, plan, inputs, alone),
    }
    found: dict[str, Scenario | str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except NotPossible as reason:
            found[name] = str(reason)
    return found


def as_is(parts: PipelineParts, plan: Plan, inputs: Inputs) -> Scenario:
    """Return the pipeline as it is."""
    if not inputs.num_delivered:
        raise NotPossible("not possible: no item came through the pipeline")
    return Scenario(
        name="as_is",
        pipeline=_discarding(parts, parts.pipeline.routes),
        plan=plan,
        jobs=inputs.jobs,
        copies=any(inputs.stages[stages[0].name].mutates for stages in parts.pipeline.routes.values()),
        says=f"the pipeline as it is, with {len(inputs.jobs)} jobs over and over and nothing delivered",
    )


def cached_items(parts: PipelineParts, inputs: Inputs) -> Scenario:
    """Return what remains of the pipeline from its first device stage on, fed with kept items from memory."""
    routes: dict[str, tuple[Stage, ...]] = {}
    jobs: list[Job] = []
    devices: list[str] = []
    for task, stages in parts.pipeline.routes.items():
        rest = from_device(stages)
        given = inputs.stages[rest[0].name].given if rest else []
        if not given:
            of_task = f" of task {task}" if task else ""
            why = f"no item{of_task} comes to its device stage" if rest else f"there is no device stage{of_task}"
            raise NotPossible(f"not possible: {why}")
        routes[task] = (*rest, stages[-1])
        devices.append(rest[0].name)
        jobs += [Job(one.job.id, one.value, task=task, attributes=dict(one.job.attributes)) for one in given]
    if not inputs.num_delivered:
        raise NotPossible("not possible: no item came through the pipeline")
    is_inside_fan = any(route[-2] is not parts.pipeline.routes[task][-2] for task, route in routes.items())
    return Scenario(
        name="cached_items",
        pipeline=_discarding(parts, routes),
        plan=plan_from(parts, routes),
        jobs=jobs,
        says=f"{' and '.join(devices)} and what follows, fed from memory with what the stages before made",
        outputs_per_item=len(jobs) / inputs.num_delivered if is_inside_fan else 1.0,
        copies=any(inputs.stages[name].mutates for name in devices),
    )


def emulated_model(parts: PipelineParts, plan: Plan, inputs: Inputs, alone: Sequence[StageAlone]) -> Scenario:
    """Return the pipeline with each device stage replaced by one that only takes its time."""
    devices = [stage for stage in parts.pipeline.stages if stage.kind == "device"]
    if not devices:
        raise NotPossible("not possible: there is no device stage")
    if all(parts.is_emulated(stage) for stage in devices):
        raise NotPossible("not run: the model is emulated already")
    # One that is emulated stays as it is.
    emulated = {stage.name: _emulate(parts, stage, inputs, alone) for stage in devices if not parts.is_emulated(stage)}
    routes = {
        task: tuple(emulated.get(stage.name, stage) for stage in stages)
        for task, stages in parts.pipeline.routes.items()
    }
    # One that takes no CPU needs no process, and several would make as many devices.
    stages = {
        name: one.with_executor("thread", one.workers) if name in emulated and one.executor == "process" else one
        for name, one in plan.stages.items()
    }
    lines = "; ".join(f"{name} {device.describe()}" for name, device in emulated.items())
    return dataclasses.replace(
        as_is(parts, plan, inputs),
        name="emulated_model",
        pipeline=_discarding(parts, routes),
        plan=dataclasses.replace(plan, stages=stages),
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
    around = [index for index in range(first) if stages[index].role == "fan_out" and find_join(stages, index) > first]
    return tuple(stages[first : find_join(stages, around[-1]) if around else len(stages) - 1])


def plan_from(parts: PipelineParts, routes: Mapping[str, Sequence[Stage]]) -> Plan:
    """Return the resolved Plan for a pipeline that was cut.

    It is without the stages that are gone; the first stage has the workers of the station that it shared; nothing else limits
    what is in flight.
    """
    plan = parts.plan
    remaining = {stage.name: plan.stages[stage.name] for stages in routes.values() for stage in stages}
    for stages in routes.values():
        first = stages[0].name
        if remaining[first].executor == "inline":
            remaining[first] = dataclasses.replace(
                remaining[first], executor=parts.executors[first], workers=parts.workers[first]
            )
    return dataclasses.replace(plan, stages=remaining, source=dataclasses.replace(plan.source, max_in_flight=None))


def _discarding(parts: PipelineParts, routes: Mapping[str, Sequence[Stage]]) -> Pipeline:
    """Return a pipeline with these routes, the delivery at their ends replaced by one that forgets."""
    pipeline = copy.copy(parts.pipeline)
    pipeline.routes = {task: tuple(stages) for task, stages in routes.items()}
    return pipeline.replace_delivery(Discard(parts.pipeline.delivery.default_workers))


def _emulate(parts: PipelineParts, stage: Stage, inputs: Inputs, alone: Sequence[StageAlone]) -> EmulatedDevice:
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
    longer = _longer_side_by_side(curve, max(costs), parts.workers[stage.name])
    cost = EmulatedOptions(launch_seconds=launch * longer, item_seconds=item * longer)
    return EmulatedDevice(stage, cost, misfit, results)


def _longer_side_by_side(curve: Sequence[CurvePoint], batch_size: int, workers: int) -> float:
    """Return how many times longer a call takes with as many at once as there are workers; where not measured, `workers`."""
    rates = {point.workers: point.throughput for point in curve if point.batch_size == batch_size}
    return max(1.0, workers * rates[1] / rates[workers]) if workers in rates else float(workers)
