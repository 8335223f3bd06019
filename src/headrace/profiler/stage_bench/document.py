"""The whole stage benchmark of a pipeline: stages alone, then variations, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headrace.base.errors import HeadraceError
from headrace.base.formatting import pluralize
from headrace.base.plan import Plan
from headrace.base.protocols import Model
from headrace.base.settings import check
from headrace.base.units import format_size
from headrace.compare.blocks import quiet
from headrace.pipeline.definition import Pipeline
from headrace.profiler.stage_bench.inputs import Inputs, collect
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts
from headrace.profiler.stage_bench.scaling import Effort, measure_alone, seconds_needed
from headrace.profiler.stage_bench.variation_runs import measure_all
from headrace.profiler.stage_bench.variations import build
from headrace.profiler.stage_bench.words import explain
from headrace.runs.formats.isolation import IsolationDocument, StageAlone, Variation
from headrace.stages.stage import StageContext


def isolate(
    pipeline: Pipeline,
    plan: Plan,
    *,
    items: int = 64,
    seconds: float = 1.5,
    repetitions: int = 3,
    deliver: bool = False,
    progress: Callable[[str], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> IsolationDocument:
    """Run each stage alone, and the pipeline with one part replaced; return what was measured.

    Nothing is delivered and no job is acked: jobs are received once and given back, and all runs work on copies.

    Args:
        pipeline: What is done; its source must be a folder or a list, not a queue.
        plan: How.
        items: Items whose inputs are kept for each stage, >= 1; fewer where memory does not suffice.
        seconds: How long each setting is measured in each repetition, > 0.
        repetitions: How often, >= 1.
        deliver: Also measure the delivery alone. It then delivers the same results again and again.
        progress: Told in words what is being done.
        stop: Asked several times a second; True ends it soon, and what was measured is returned.

    Raises:
        SettingsError: If the Plan does not fit the pipeline, or the source is a queue.
        SourceError: If the source gives no job.
        HeadraceError: If a stage cannot be opened at all.
    """
    check(items >= 1, "items", items, "a whole number >= 1")
    check(seconds > 0, "seconds", seconds, "more than 0")
    check(repetitions >= 1, "repetitions", repetitions, "a whole number >= 1")
    effort = Effort(seconds, repetitions, stop or (lambda: False), progress or (lambda text: None))
    parts = PipelineParts.of(pipeline, plan)
    effort.progress(f"collecting the inputs of {items} items")
    inputs = collect(parts, items, effort.stop)
    with quiet():  # the profiled run has said it already
        alone = tuple(_all_alone(parts, inputs, effort, deliver=deliver))
        variations = measure_all(build(parts, plan, inputs, alone), effort)
    return document(parts, inputs, alone, variations, stopped=effort.stop())


def document(
    parts: PipelineParts,
    inputs: Inputs,
    alone: Sequence[StageAlone],
    variations: Sequence[Variation],
    *,
    stopped: bool = False,
) -> IsolationDocument:
    """Return the document of what was measured."""
    cached = next((one for one in variations if one.name == "cached_items"), None)
    return IsolationDocument(
        pipeline=parts.pipeline.name,
        plan_id=parts.plan.plan_id,
        num_items=inputs.num_jobs,
        stages=tuple(alone),
        variations=tuple(variations),
        device_ceiling=cached.throughput if cached else None,
        feeding_headroom=cached.ratio if cached else None,
        says=(*_about_inputs(inputs, stopped), *explain(variations, emulated=_has_emulated_device(parts))),
    )


def _about_inputs(inputs: Inputs, stopped: bool) -> list[str]:
    says = []
    if stopped:
        says.append("stopped before all was measured: what is missing was not reached")
    if inputs.is_cut:
        kept = f"{pluralize(inputs.num_jobs, 'item')} ({format_size(inputs.num_bytes)})"
        says.append(f"memory sufficed for the inputs of {kept}; few of them may not stand for all")
    failed = sum(one.num_failed for one in inputs.stages.values())
    if failed or inputs.no_route:
        first = next((one.first_error for one in inputs.stages.values() if one.first_error), "no module takes its task")
        says.append(f"{pluralize(failed + inputs.no_route, 'item')} failed and are left out, the first: {first}")
    return says


def _all_alone(parts: PipelineParts, inputs: Inputs, effort: Effort, *, deliver: bool) -> Iterator[StageAlone]:
    stages = [one for one in inputs.stages.values() if one.stage.role != "deliver" or deliver]
    left = seconds_needed(parts, [one.stage for one in stages], effort)
    for number, one in enumerate(stages, 1):
        if effort.stop():
            return
        effort.progress(f"stage {one.stage.name} alone, {number} of {len(stages)}; about {left:.0f} s left for stages")
        with _delivery(parts, one.stage.role == "deliver"):
            yield measure_alone(parts, one, effort)
        left -= seconds_needed(parts, [one.stage], effort)


@contextmanager
def _delivery(parts: PipelineParts, wanted: bool) -> Iterator[None]:
    """Open the real delivery, once for all its workers, while it is wanted."""
    if not wanted:
        yield
        return
    stage, delivery = parts.pipeline.stages[-1], parts.pipeline.delivery
    delivery.open(StageContext(stage.name, 0, parts.plan, parts.plan.stages[stage.name].options, None, _no_model))
    try:
        yield
    finally:
        delivery.flush()
        delivery.close()


def _no_model(path: str | None = None) -> Model:
    raise HeadraceError("a delivery has no model")


def _has_emulated_device(parts: PipelineParts) -> bool:
    return any(stage.kind == "device" and parts.is_emulated(stage) for stage in parts.pipeline.stages)
