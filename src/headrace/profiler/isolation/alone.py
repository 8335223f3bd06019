"""One stage alone: what it costs, and how its throughput grows with workers; a device's with batch size and calls at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.base.formatting import counted
from headrace.base.policies.batching import warm_up_sizes
from headrace.base.units import format_rate
from headrace.pipeline.garbage import calm_garbage_collector
from headrace.profiler.isolation.bench import Bench
from headrace.profiler.isolation.crew import Crew
from headrace.profiler.isolation.curves import Measured, curve_point, knee, scaling_in_words
from headrace.profiler.isolation.inputs import Given, StageInputs, same_shape_batches
from headrace.runs.formats.isolation import CurvePoint, StageAlone
from headrace.stages.stage import Stage

#: Most workers of an io stage, unless the Plan has more: servers are others' too.
_MOST_IO_WORKERS = 64
#: Less than this share of an item's time, or of its CPU time, does not count.
_LITTLE_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Load:
    """One setting to measure."""

    workers: int
    batch_size: int | None
    """None for stages that take items one by one."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    seconds: float
    """Of each stretch."""
    repetitions: int
    stop: Callable[[], bool]
    progress: Callable[[str], object]


def loads(stage: Stage, bench: Bench) -> list[Load]:
    """Return the settings to measure: powers of two, and what the Plan says.

    A cpu stage goes up to twice the cores (processes: to the cores), an io stage up to twice the Plan's workers (at most 64), a
    device through its batch sizes with one call at a time, and then through calls side by side at the largest.
    """
    planned = bench.workers(stage)
    if stage.kind == "device":
        sizes = warm_up_sizes(bench.batch(stage))
        # Each process would make an emulated device of its own.
        most = (
            1 if bench.executors[stage.name] == "process" and bench.has_emulated_model(stage) else max(2, 2 * planned)
        )
        most = max(planned, min(most, max(2, bench.cores)))
        beside = [Load(workers, sizes[-1]) for workers in _powers(most, planned)]
        return [*(Load(1, size) for size in sizes[:-1]), *beside]
    if stage.kind == "io":
        most = min(_MOST_IO_WORKERS, 2 * planned)
    else:  # more processes than cores would only cost memory
        most = bench.cores if bench.executors[stage.name] == "process" else 2 * bench.cores
    return [Load(workers, None) for workers in _powers(max(most, planned), planned)]


def measure_alone(bench: Bench, inputs: StageInputs, effort: Effort) -> StageAlone:
    """Return one stage alone; without a curve where it could not be run, and `says` tells why."""
    stage = inputs.stage
    if not inputs.given:
        failed = (
            f"; {counted(inputs.num_failed, 'item')} failed in it, the first: {inputs.first_error}"
            if inputs.num_failed
            else ""
        )
        return _without_curve(bench, stage, f"not run alone: no item came through it{failed}")
    wanted = loads(stage, bench)
    try:
        with Crew(bench, stage, max(load.workers for load in wanted), effort.stop) as crew, calm_garbage_collector():
            possible = [load for load in wanted if load.workers <= crew.num_workers]
            found = _measure(crew, possible, inputs, effort)
            fewer = f"only {crew.num_workers} workers could be opened: {crew.error}" if crew.error else ""
    except Exception as error:  # a user's code opens the stage
        return _without_curve(bench, stage, f"not run alone: it could not be opened: {type(error).__name__}: {error}")
    return summarize(stage, bench, inputs, found, fewer)


def _measure(crew: Crew, wanted: Sequence[Load], inputs: StageInputs, effort: Effort) -> dict[Load, list[Measured]]:
    """Measure all settings in turn, there and back, so that a drift of the machine does not fall on one of them."""
    found: dict[Load, list[Measured]] = {}
    batches = {load.batch_size: _batches(inputs.given, load.batch_size) for load in wanted}
    for repetition in range(effort.repetitions):
        for load in wanted if repetition % 2 == 0 else reversed(wanted):
            if effort.stop():
                return found
            measured = crew.run(batches[load.batch_size], load.workers, effort.seconds, copies=inputs.mutates)
            if measured is not None:
                found.setdefault(load, []).append(measured)
    return found


def _batches(given: Sequence[Given], size: int | None) -> Sequence[Sequence[Given]]:
    return [[one] for one in given] if size is None else same_shape_batches(given, size)


def summarize(
    stage: Stage, bench: Bench, inputs: StageInputs, found: dict[Load, list[Measured]], note: str = ""
) -> StageAlone:
    """Return what was measured of a stage, as the document has it.

    Args:
        stage: The stage.
        bench: The pipeline.
        inputs: What it was given.
        found: By setting, what each repetition measured.
        note: What else is to be said.
    """
    ordered = sorted(found, key=lambda load: (load.batch_size or 0, load.workers))
    curve = tuple(point for load in ordered if (point := curve_point(found[load])) is not None)
    if not curve:
        errors = [one.error for repetitions in found.values() for one in repetitions if one.error]
        why = f"every item failed, the first: {errors[0]}" if errors else "it was stopped before anything was measured"
        return _without_curve(bench, stage, f"not run alone: {why}")
    largest = max((point.batch_size or 0 for point in curve), default=0)
    beside = [point for point in curve if (point.batch_size or 0) == largest]
    one = next((point for point in beside if point.workers == 1), None)
    mixed = _mixed_waiting(one, found[Load(1, largest or None)]) if one else ""
    executor = bench.executors[stage.name]
    return StageAlone(
        name=stage.name,
        kind=stage.kind,
        executor=executor,
        cpu_demand=one.cpu if one else None,
        wait_demand=one.blocked if one and not mixed else None,
        curve=curve,
        knee_workers=knee(beside),
        best_throughput=max(point.throughput for point in curve),
        says="; ".join(_sayings(stage, bench, inputs, beside, [mixed, note, _failures(found)])),
    )


def _sayings(
    stage: Stage, bench: Bench, inputs: StageInputs, beside: Sequence[CurvePoint], notes: Sequence[str]
) -> list[str]:
    says = [_best_in_words(stage, beside)]
    if stage.kind == "cpu" and bench.executors[stage.name] == "thread":
        says.append(scaling_in_words(beside, bench.cores))
    if inputs.mutates:
        says.append("it changes its input in place, so every call got a copy, whose making is counted")
    if inputs.num_failed:
        says.append(
            f"{counted(inputs.num_failed, 'item')} failed in it and are left out, the first: {inputs.first_error}"
        )
    return [text for text in (*says, *notes) if text]


def _best_in_words(stage: Stage, beside: Sequence[CurvePoint]) -> str:
    best = max(beside, key=lambda point: point.throughput)
    one, what = ("one call comes", "calls side by side") if stage.kind == "device" else ("one worker comes", "workers")
    batch = f" at batch {best.batch_size}" if best.batch_size else ""
    found = knee(beside)
    if found is not None:
        who = one if found == 1 else f"{found} {what} come"
        return f"{format_rate(best.throughput)} at best{batch}; {who} within 5 % of it"
    if len(beside) > 1:
        return f"{format_rate(best.throughput)} at best{batch}, and still rising at {beside[-1].workers} {what}"
    return f"{format_rate(best.throughput)}{batch} with {beside[-1].workers} {what}"


def _failures(found: dict[Load, list[Measured]]) -> str:
    every = [one for repetitions in found.values() for one in repetitions if one.num_failed]
    if not every:
        return ""
    failed = sum(one.num_failed for one in every)
    return f"{counted(failed, 'item')} failed while it was measured, the first: {every[0].error}"


def _mixed_waiting(one: CurvePoint, repetitions: Sequence[Measured]) -> str:
    """Return why it is not known how long one worker waits for the outside; empty if it is."""
    cpu = sum(measured.cpu_seconds for measured in repetitions)
    native = sum(measured.native_cpu_seconds for measured in repetitions)
    a_worker = one.service if one.batch_size is None else one.service / one.batch_size
    if one.blocked is None or one.blocked <= _LITTLE_SHARE * a_worker or native <= _LITTLE_SHARE * cpu:
        return ""
    return (
        f"{native / cpu:.0%} of its CPU time is on threads of its libraries: what it waits for them and what for the outside "
        "is not told apart"
    )


def _without_curve(bench: Bench, stage: Stage, says: str) -> StageAlone:
    return StageAlone(
        name=stage.name,
        kind=stage.kind,
        executor=bench.executors[stage.name],
        cpu_demand=None,
        wait_demand=None,
        curve=(),
        knee_workers=None,
        best_throughput=None,
        says=says,
    )


def _powers(most: int, planned: int) -> list[int]:
    powers = {1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most}
    return sorted(powers | {planned})


def seconds_needed(bench: Bench, stages: Sequence[Stage], seconds: float, repetitions: int) -> float:
    """Return about how long it takes to measure stages alone."""
    return sum(len(loads(stage, bench)) for stage in stages) * seconds * repetitions
