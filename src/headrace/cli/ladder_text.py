"""A ladder for a terminal of 80 columns: the table with bars, then what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, with_bars, wrap_lines
from headrace.base.units import format_number

if TYPE_CHECKING:
    from headrace.runs.formats.profile import Estimate
    from headrace.runs.formats.tuning import LadderDocument, LadderStep

#: Settings that say how a step is set up in detail; the document has all of them.
_MOST_SETTINGS = 6


def as_text(document: LadderDocument) -> str:
    """Return the document as plain text."""
    parts = [
        [f"{document.pipeline}, step by step{' (the device was emulated)' if document.is_emulated else ''}"],
        _table(document),
        _changes(document.steps),
        wrap_lines([*document.says, *(f"warning: {warning}" for warning in document.warnings)]),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _table(document: LadderDocument) -> list[str]:
    has_cost = document.price_per_hour is not None
    has_prediction = any(step.predicted for step in document.steps)
    heading = ["step", "items/s", "x before", "x alone"]
    heading += ["predicted", "error"] if has_prediction else []
    heading += ["per 1,000"] if has_cost else []
    rows = [heading]
    for step in document.steps:
        row = [step.name, format_number(step.throughput), _ratio(step.ratio_before), _ratio(step.ratio_alone)]
        if has_prediction:
            error = step.prediction_error
            row += [
                format_number(step.predicted.mid if step.predicted else None),
                "-" if error is None else f"{error:+z.1%}",
            ]
        if has_cost:
            row.append("-" if step.cost_per_thousand is None else f"{step.cost_per_thousand:.3g}")
        rows.append(row)
    return with_bars(align_columns(rows), [step.throughput for step in document.steps])


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return "-"
    return "no change" if ratio.low <= 1 <= ratio.high else f"{ratio.mid:.3g}"


def _changes(steps: Sequence[LadderStep]) -> list[str]:
    """Return what each step is, and the first of its settings."""
    lines = []
    for step in steps:
        lines.append(f"{step.name}: {step.says}")
        if step.settings:
            more = len(step.settings) - _MOST_SETTINGS
            rest = f" and {more} more" if more > 0 else ""
            lines.append(f"  {' '.join(step.settings[:_MOST_SETTINGS])}{rest}")
        if step.refused:
            lines.append(f"  not predicted: {step.refused}")
    return wrap_lines(lines)
