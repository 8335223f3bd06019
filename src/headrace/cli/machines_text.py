"""What more machines bring, for a terminal of 80 columns: the words, then a table with a bar for each number of machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, wrap_lines
from headrace.base.units import format_number
from headrace.tune.capacity_words import money

if TYPE_CHECKING:
    from headrace.runs.formats.machines import MachinesDocument, MachinesRow

_BAR_COLUMNS = 24


def as_text(document: MachinesDocument) -> str:
    """Return the document as plain text."""
    parts = [
        wrap_lines([document.pipeline or document.run, *document.says]),
        _table(document),
        wrap_lines([f"also left: x{left.ratio:.2g} by {left.name}" for left in document.left[1:4]]),
        wrap_lines([f"warning: {warning}" for warning in document.warnings]),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _table(document: MachinesDocument) -> list[str]:
    has_price = document.price_per_hour is not None
    heading = ["machines", "jobs/s", "of linear", *(["million"] if has_price else []), "held up by"]
    rows = [heading, *(_row(row, has_price=has_price) for row in document.rows)]
    most = max((row.jobs_per_second for row in document.rows), default=0.0)
    bars = [
        "",
        *("#" * max(1, round(_BAR_COLUMNS * row.jobs_per_second / most)) if most else "" for row in document.rows),
    ]
    return [f"{line}  {bar}".rstrip() for line, bar in zip(align_columns(rows), bars, strict=True)]


def _row(row: MachinesRow, *, has_price: bool) -> list[str]:
    cells = [f"{row.machines:,}", format_number(row.jobs_per_second), f"{row.efficiency:.0%}"]
    if has_price:
        cells.append("-" if row.cost_per_million is None else money(row.cost_per_million))
    return [*cells, row.limited_by or "-"]
