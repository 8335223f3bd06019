"""A capacity plan for a terminal of 80 columns: the arithmetic, then a table of what each improvement is worth."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from headrace.base.units import format_duration
from headrace.base.words import COLUMNS, aligned, wrapped
from headrace.tune.capacity_words import money, number

if TYPE_CHECKING:
    from headrace.runs.formats.capacity import CapacityDocument, CapacityOption

_NAME_COLUMNS = 28
_FEWEST_BAR_COLUMNS = 6


def as_text(document: CapacityDocument) -> str:
    """Return the document as plain text."""
    notes = [f"note: {option.name}: {option.note}" for option in document.options if option.note]
    refused = [f"not told: {option.name}: {option.refused}" for option in document.options[1:] if option.refused]
    record = f"Predictions: {document.record.says}."
    parts = [
        wrapped([document.pipeline or document.run, *document.says]),
        _table(document),
        wrapped([*notes, *refused, record, *(f"warning: {warning}" for warning in document.warnings)]),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _table(document: CapacityDocument) -> list[str]:
    has_price, has_latency = document.price_per_hour is not None, any(one.latency_p99 for one in document.options)
    heading = ["", "full/s", "usable/s", "machines"]
    heading += ["p99"] if has_latency else []
    heading += ["million", "a month", "saves"] if has_price else []
    rows = [heading, *(_row(option, has_price=has_price, has_latency=has_latency) for option in document.options)]
    lines = aligned([[row[0] if len(row[0]) <= _NAME_COLUMNS else "", *row[1:]] for row in rows])
    return _with_names_and_bars(document, rows, lines)


def _row(option: CapacityOption, *, has_price: bool, has_latency: bool) -> list[str]:
    row = [
        option.name,
        _cell(option.throughput.mid if option.throughput else None),
        _cell(option.usable_throughput),
        "-" if option.machines is None else f"{option.machines:,}",
    ]
    if has_latency:
        row.append("-" if option.latency_p99 is None else format_duration(option.latency_p99.mid))
    if has_price:
        row += [_money(option.cost_per_million), _money(option.cost_per_month), _money(option.saves_per_month)]
    return row


def _with_names_and_bars(document: CapacityDocument, rows: list[list[str]], lines: list[str]) -> list[str]:
    """Put long names on lines of their own, and a bar for the machines at the end where there is room."""
    most = max((option.machines or 0 for option in document.options), default=0)
    room = COLUMNS - max(len(line) for line in lines) - 2
    width = max(len(line) for line in lines)
    found = [lines[0]]
    for option, row, line in zip(document.options, rows[1:], lines[1:], strict=True):
        if len(row[0]) > _NAME_COLUMNS:
            found += textwrap.wrap(row[0], COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
        if room >= _FEWEST_BAR_COLUMNS and option.machines:
            line = f"{line:<{width}}  {'#' * max(1, round(room * option.machines / most))}"
        found.append(line)
    return found


def _cell(value: float | None) -> str:
    return "-" if value is None else number(value)


def _money(value: float | None) -> str:
    return "-" if value is None else money(value)
