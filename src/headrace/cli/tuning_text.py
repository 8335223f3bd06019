"""A tuning for a terminal of 80 columns: what it says, the Plans that were measured, and batch sizes as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, quote_arg, with_bars, wrap_lines
from headrace.base.units import format_duration, format_size

if TYPE_CHECKING:
    from headrace.runs.formats.profile import Estimate
    from headrace.runs.formats.tuning import SweepPoint, Trial, TuningDocument


def as_text(document: TuningDocument) -> str:
    """Return the document as plain text."""
    parts = [
        wrap_lines(document.says),
        _trials(document.trials),
        _sweep(document.sweep),
        _end(document),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _trials(trials: Sequence[Trial]) -> list[str]:
    measured = [trial for trial in trials if trial.outcome != "not measured"]
    if not measured:
        return []
    rows = [["plan", "predicted", "measured", "interval", "p50", "outcome"]]
    for number, trial in enumerate(measured, 1):
        rows.append(
            [
                str(number),
                _ratio(trial.predicted),
                _ratio(trial.measured),
                _interval(trial.measured),
                format_duration(trial.latency_p50),
                trial.outcome,
            ]
        )
    lines = ["throughput to that of the present Plan", *align_columns(rows)]
    for number, trial in enumerate(measured, 1):
        lines += wrap_lines([f"{number}: {trial.name}", f"   {trial.why}"])
    return lines


def _sweep(points: Sequence[SweepPoint]) -> list[str]:
    """Return a line for each batch size, with a bar of its throughput and the sweet spot marked."""
    if sum(point.throughput is not None for point in points) < 2:
        return []
    lines = align_columns([("batch", "items/s", "latency", "memory", ""), *map(_row, points)])
    return ["batch sizes, with the best Plan otherwise", *with_bars(lines, [point.throughput for point in points])]


def _row(point: SweepPoint) -> tuple[str, ...]:
    return (
        str(point.batch),
        "-" if point.throughput is None else f"{point.throughput:.4g}",
        format_duration(point.latency_p50),
        "-" if point.memory_bytes is None else f"+{format_size(point.memory_bytes)}",
        "sweet spot" if point.is_sweet_spot else point.source,
    )


def _end(document: TuningDocument) -> list[str]:
    lines, commands = [f"predictions so far: {document.record.says}"], {}
    if document.plan_file:
        changed = quote_arg(f"{document.pipeline}@{document.plan_file}")
        commands = {
            f"written: {document.plan_file}; take it back": f"headrace ledger rollback {quote_arg(document.plan_file)}",
            "look again": f"headrace compare {quote_arg(document.pipeline)} {changed}",
        }
    said = wrap_lines([*lines, *(f"warning: {warning}" for warning in document.warnings)])
    return said + [f"{what}: {command}" for what, command in commands.items()]  # whole, to be copied


def _ratio(ratio: Estimate | None) -> str:
    return "-" if ratio is None else f"x{ratio.mid:.3g}"


def _interval(ratio: Estimate | None) -> str:
    return "-" if ratio is None else f"{ratio.low:.3g}-{ratio.high:.3g}"
