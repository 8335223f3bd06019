"""A capacity plan for a terminal of 80 columns: the arithmetic, then a table of what each improvement is worth."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from headrace.base.formatting import COLUMNS, align_columns, wrap_lines
from headrace.base.units import format_duration, format_number
from headrace.tune.capacity_words import money

if TYPE_CHECKING:
    from headrace.runs.formats.capacity import CapacityDocument, CapacityOption

_MOST_NAME_COLUMNS = 28
_BAR_NAME_COLUMNS, _BAR_COLUMNS = 40, 28


def as_text(document: CapacityDocument) -> str:
    """Return the document as plain text."""
    notes = [f"note: {option.name}: {option.note}" for option in document.options if option.note]
    refused = [
        f"{'not enough' if option.throughput else 'not told'}: {option.name}: {option.refused}"
        for option in document.options[1:]
        if option.refused
    ]
    record = f"Predictions: {document.record.says}."
    parts = [
        wrap_lines([document.pipeline or document.run, *document.says]),
        _table(document),
        _bars(document),
        wrap_lines([*notes, *refused, record, *(f"warning: {warning}" for warning in document.warnings)]),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _table(document: CapacityDocument) -> list[str]:
    has_price, has_latency = document.price_per_hour is not None, any(one.latency_p99 for one in document.options)
    heading = ["", "full/s", "usable/s", "machines"]
    heading += ["p99"] if has_latency else []
    heading += ["million", "a month", "saves"] if has_price else []
    rows = [heading, *(_row(option, has_price=has_price, has_latency=has_latency) for option in document.options)]
    room = COLUMNS - max(len(line) for line in align_columns([["", *row[1:]] for row in rows]))
    names = [row[0] if len(row[0]) <= min(room, _MOST_NAME_COLUMNS) else "" for row in rows]
    lines = align_columns([[name, *row[1:]] for name, row in zip(names, rows, strict=True)])
    long_names = [row[0] if not name else "" for name, row in zip(names, rows, strict=True)]
    return [part for name, line in zip(long_names, lines, strict=True) for part in (*_wrapped_name(name), line)]


def _row(option: CapacityOption, *, has_price: bool, has_latency: bool) -> list[str]:
    row = [
        option.name,
        format_number(option.throughput.mid if option.throughput else None),
        format_number(option.usable_throughput),
        "-" if option.machines is None else f"{option.machines:,}",
    ]
    if has_latency:
        row.append("-" if option.latency_p99 is None else format_duration(option.latency_p99.mid))
    if has_price:
        row += [_money(option.cost_per_million), _money(option.cost_per_month), _money(option.saves_per_month)]
    return row


def _wrapped_name(name: str) -> list[str]:
    """Return a name too long for its column on lines of its own."""
    return textwrap.wrap(name, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _bars(document: CapacityDocument) -> list[str]:
    """Return a bar for the machines of each option that will do."""
    options = [option for option in document.options if option.machines]
    most = max((option.machines or 0 for option in options), default=0)
    rows = [
        (
            textwrap.shorten(option.name, _BAR_NAME_COLUMNS, placeholder=" ..."),
            f"{option.machines:,}",
            "#" * max(1, round(_BAR_COLUMNS * (option.machines or 0) / most)),
        )
        for option in options
    ]
    lines = align_columns([(name, number) for name, number, _ in rows]) if rows else []
    return [f"{line}  {bar}" for line, (_, _, bar) in zip(lines, rows, strict=True)]


def _money(value: float | None) -> str:
    return "-" if value is None else money(value)
