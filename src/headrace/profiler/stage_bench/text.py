"""The stage benchmark as plain text, for people."""

from __future__ import annotations

from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration, format_rate
from headrace.profiler.stage_bench.words import describe_ratio
from headrace.runs.formats.isolation import CurvePoint, IsolationDocument, StageAlone, Variation

_STAGES = ("stage alone", "kind", "cpu/item", "wait/item", "best", "knee")
_CURVE = ("workers", "batch", "rate", "range", "an item", "cpu", "run delay", "blocked")
_BATCHES = ("calls at once", "batch", "rate", "range", "a call", "cpu/item", "run delay", "blocked")
_VARIATIONS = ("pipeline", "rate", "range", "of as_is (95 %)")


def as_text(document: IsolationDocument) -> str:
    """Return what was measured as tables and sentences.

    Args:
        document: What `isolate` returned.
    """
    parts = [
        [
            f"{document.pipeline}: stages alone, inputs of {pluralize(document.num_items, 'item')}, Plan {document.plan_id}"
        ]
    ]
    if document.stages:
        parts.append(align_columns([_STAGES, *map(_stage_row, document.stages)]))
    parts += [_stage_part(stage) for stage in document.stages]
    if document.variations:
        parts.append(align_columns([_VARIATIONS, *map(_variation_row, document.variations)]))
        parts.append(wrap_lines(f"{one.name}: {one.says}" for one in document.variations if one.says))
    if document.says:
        parts.append(wrap_lines(document.says))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _stage_row(stage: StageAlone) -> tuple[str, ...]:
    return (
        stage.name,
        stage.kind,
        format_duration(stage.cpu_demand),
        format_duration(stage.wait_demand),
        format_rate(stage.best_throughput),
        _knee(stage),
    )


def _knee(stage: StageAlone) -> str:
    if stage.knee_workers is not None:
        return str(stage.knee_workers)
    most = max((point.workers for point in stage.curve), default=1)
    return f">={most}" if most > 1 else "-"


def _stage_part(stage: StageAlone) -> list[str]:
    lines = wrap_lines([f"{stage.name} ({stage.executor}){': ' if stage.says else ''}{stage.says}"])
    if stage.curve:
        lines += [
            "  " + line
            for line in align_columns([_BATCHES if stage.kind == "device" else _CURVE, *map(_point_row, stage.curve)])
        ]
    return lines


def _point_row(point: CurvePoint) -> tuple[str, ...]:
    return (
        str(point.workers),
        "-" if point.batch_size is None else str(point.batch_size),
        format_rate(point.throughput),
        _range(point.throughput_low, point.throughput_high),
        *map(format_duration, (point.service, point.cpu, point.run_delay, point.blocked)),
    )


def _variation_row(one: Variation) -> tuple[str, ...]:
    return (
        one.name,
        format_rate(one.throughput),
        _range(one.throughput_low, one.throughput_high),
        describe_ratio(one),
    )


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{format_rate(low)[:-2]}-{format_rate(high)[:-2]}"
