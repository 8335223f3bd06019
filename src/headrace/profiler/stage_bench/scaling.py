"""One stage alone: what it costs, and how its throughput grows with workers; a device's with batch size and calls at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.base.formatting import pluralize
from headrace.base.policies.batching import warm_up_sizes
from headrace.base.units import format_rate
from headrace.compare.turns import runs_backwards
from headrace.profiler.stage_bench.curves import curve_point, describe_scaling, knee
from headrace.profiler.stage_bench.inputs import Sample, StageInputs, same_shape_batches
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts
from headrace.profiler.stage_bench.stage_run import Measurement, Setting, Stretch, run_stretches
from headrace.runs.formats.isolation import CurvePoint, StageAlone
from headrace.stages.stage import Stage

#: Most workers of an io stage, unless the Plan has more: servers are others' too.
_MOST_IO_WORKERS = 64
#: Less than this share of an item's time, or of its CPU time, does not count.
_LITTLE_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    seconds: float
    """Of each stretch."""
    repetitions: int
    stop: Callable[[], bool]
    progress: Callable[[str], object]


#: What each repetition measured, by setting.
Found = Mapping[Setting, Sequence[Measurement]]


def list_settings(stage: Stage, parts: PipelineParts) -> list[Setting]:
    """Return the settings to measure: powers of two, and what the Plan says.

    A cpu stage goes up to twice the cores (processes: to the cores), an io stage up to twice the Plan's workers (at most 64), a
    device through its batch sizes with one call at a time, and then through calls side by side at the largest.
    """
    planned, cores = parts.workers[stage.name], parts.cores
    is_process = parts.executors[stage.name] == "process"
    if stage.kind == "device":
        sizes = warm_up_sizes(parts.batch(stage))
        # Each process would make an emulated device of its own.
        is_single = is_process and parts.has_emulated_model(stage)
        most = 1 if is_single else min(max(2, 2 * planned), max(2, cores))
        beside = [Setting(workers, sizes[-1]) for workers in _powers(most, planned)]
        return [*(Setting(1, size) for size in sizes[:-1]), *beside]
    if stage.kind == "io":
        most = min(_MOST_IO_WORKERS, 2 * planned)
    else:  # more processes than cores would only cost memory
        most = cores if is_process else 2 * cores
    return [Setting(workers, None) for workers in _powers(most, planned)]


def _powers(most: int, planned: int) -> list[int]:
    most = max(most, planned)
    return sorted({1 << exponent for exponent in range(most.bit_length())} | {planned})


def seconds_needed(parts: PipelineParts, stages: Sequence[Stage], effort: Effort) -> float:
    """Return about how long it takes to measure stages alone."""
    return sum(len(list_settings(stage, parts)) for stage in stages) * effort.seconds * effort.repetitions


def measure_alone(parts: PipelineParts, inputs: StageInputs, effort: Effort) -> StageAlone:
    """Return one stage alone; without a curve where it could not be run, and `says` gives the reason."""
    if not inputs.given:
        failed = ""
        if inputs.num_failed:
            failed = f"; {pluralize(inputs.num_failed, 'item')} failed in it, the first: {inputs.first_error}"
        return _without_curve(parts, inputs.stage, f"no item came through it{failed}")
    settings, note = list_settings(inputs.stage, parts), ""
    while True:
        most = max(setting.workers for setting in settings)
        try:
            return summarize(parts, inputs, _measure(parts, settings, inputs, effort), note)
        except Exception as error:  # a user's code opens the stage
            why = f"{type(error.__cause__ or error).__name__}: {error.__cause__ or error}"
        settings = [setting for setting in settings if setting.workers < most]
        if not settings:
            return _without_curve(parts, inputs.stage, f"it could not be opened: {why}")
        note = (
            f"only {max(one.workers for one in settings)} workers were tried, because {most} could not be opened: {why}"
        )


def _measure(
    parts: PipelineParts, settings: Sequence[Setting], inputs: StageInputs, effort: Effort
) -> dict[Setting, list[Measurement]]:
    """Measure all settings in turn, there and back, so that a drift of the machine does not fall on one of them.

    Raises:
        Exception: If the stage cannot be opened for as many workers.
    """
    batches = {setting.batch_size: _batches(inputs, setting.batch_size) for setting in settings}
    stretches = [
        Stretch(setting, batches[setting.batch_size], effort.seconds, copies=inputs.mutates)
        for repetition in range(effort.repetitions)
        for setting in (reversed(settings) if runs_backwards(repetition) else settings)
    ]
    run_stretches(parts, inputs.stage, stretches, effort.stop)
    found: dict[Setting, list[Measurement]] = {}
    for stretch in stretches:
        if stretch.measurement is not None:
            found.setdefault(stretch.setting, []).append(stretch.measurement)
    return found


def _batches(inputs: StageInputs, size: int | None) -> list[list[Sample]]:
    return [[sample] for sample in inputs.given] if size is None else same_shape_batches(inputs.given, size)


def summarize(parts: PipelineParts, inputs: StageInputs, found: Found, note: str = "") -> StageAlone:
    """Return what was measured of a stage, as the document has it.

    Args:
        parts: The pipeline.
        inputs: What the stage was given.
        found: What was measured.
        note: What else is to be said.
    """
    stage = inputs.stage
    ordered = sorted(found, key=lambda setting: (setting.batch_size or 0, setting.workers))
    curve = tuple(point for setting in ordered if (point := curve_point(setting, found[setting])) is not None)
    if not curve:
        errors = [one.error for repetitions in found.values() for one in repetitions if one.error]
        why = f"every item failed, the first: {errors[0]}" if errors else "it was stopped before anything was measured"
        return _without_curve(parts, stage, why)
    largest = max(point.batch_size or 0 for point in curve)
    beside = [point for point in curve if (point.batch_size or 0) == largest]
    single = next((point for point in beside if point.workers == 1), None)
    mixed = _explain_mixed_waiting(single, found[Setting(1, largest or None)]) if single else ""
    says = [_describe_best(stage, beside)]
    if stage.kind == "cpu" and parts.executors[stage.name] == "thread":
        says.append(describe_scaling(beside, parts.cores))
    if inputs.mutates:
        says.append("it changes its input in place, so every call got a copy, whose making is counted")
    if inputs.num_failed:
        failed = pluralize(inputs.num_failed, "item")
        says.append(f"{failed} failed in it and are left out, the first: {inputs.first_error}")
    return StageAlone(
        name=stage.name,
        kind=stage.kind,
        executor=parts.executors[stage.name],
        cpu_demand=single.cpu if single else None,
        wait_demand=single.blocked if single and not mixed else None,
        curve=curve,
        knee_workers=knee(beside),
        best_throughput=max(point.throughput for point in curve),
        says="; ".join(text for text in (*says, mixed, note, _describe_failures(found)) if text),
    )


def _describe_best(stage: Stage, beside: Sequence[CurvePoint]) -> str:
    best = max(beside, key=lambda point: point.throughput)
    one, many = ("one call comes", "calls side by side") if stage.kind == "device" else ("one worker comes", "workers")
    batch = f" at batch {best.batch_size}" if best.batch_size else ""
    found = knee(beside)
    if found is not None:
        who = one if found == 1 else f"{found} {many} come"
        return f"{format_rate(best.throughput)} at best{batch}; {who} within 5 % of it"
    if len(beside) > 1:
        return f"{format_rate(best.throughput)} at best{batch}, and still rising at {beside[-1].workers} {many}"
    return f"{format_rate(best.throughput)}{batch} with {beside[-1].workers} {many}"


def _describe_failures(found: Found) -> str:
    every = [one for repetitions in found.values() for one in repetitions if one.num_failed]
    if not every:
        return ""
    failed = pluralize(sum(one.num_failed for one in every), "item")
    return f"{failed} failed while it was measured, the first: {every[0].error}"


def _explain_mixed_waiting(single: CurvePoint, repetitions: Sequence[Measurement]) -> str:
    """Return why it is not known how long one worker waits for the outside; empty if it is."""
    cpu = sum(measured.cpu_seconds for measured in repetitions)
    native = sum(measured.native_cpu_seconds for measured in repetitions)
    seconds_per_item = single.service / (single.batch_size or 1)
    if single.blocked is None or single.blocked <= _LITTLE_SHARE * seconds_per_item or native <= _LITTLE_SHARE * cpu:
        return ""
    return (
        f"{native / cpu:.0%} of its CPU time is on threads of its libraries: what it waits for them and what for the outside "
        "is not told apart"
    )


def _without_curve(parts: PipelineParts, stage: Stage, why: str) -> StageAlone:
    return StageAlone(
        name=stage.name,
        kind=stage.kind,
        executor=parts.executors[stage.name],
        cpu_demand=None,
        wait_demand=None,
        curve=(),
        knee_workers=None,
        best_throughput=None,
        says=f"not run alone: {why}",
    )
