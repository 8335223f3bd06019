"""Says in words what a capacity document holds, so that a person can redo the arithmetic."""

from __future__ import annotations

import msgspec

from headrace.base.formatting import pluralize
from headrace.base.units import format_number, format_rate
from headrace.runs.formats.capacity import CapacityDocument, CapacityOption


def describe(document: CapacityDocument, hours_per_month: int) -> CapacityDocument:
    """Return the document with its sentences."""
    lines = [
        "The device was emulated: its times are settings, and so are the numbers below."
        if document.is_emulated
        else "",
        _need(document),
        *_base(document, hours_per_month),
        *_best(document),
    ]
    return msgspec.structs.replace(document, says=tuple(line for line in lines if line))


def money(value: float) -> str:
    """Return an amount of the user's currency: `2.25`, `4,928`, `0.00031`."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def _need(document: CapacityDocument) -> str:
    goal = f", with {document.slo}" if document.slo else ""
    return f"Wanted: {format_number(document.rate * 3600)} jobs an hour, which is {format_rate(document.rate)}{goal}."


def _base(document: CapacityDocument, hours_per_month: int) -> list[str]:
    base = document.options[0]
    full, usable = base.throughput, base.usable_throughput
    if full is None:
        return [f"What one machine can do as recorded cannot be told: {base.refused}"]
    interval = f"{format_number(full.low)} to {format_number(full.high)}"
    lines = [f"One machine as recorded does {format_rate(full.mid)} at full load ({interval})."]
    if usable is None or base.machines is None or base.usable_share is None:
        return [*lines, f"{base.refused}. More machines do not help; a faster service does."]
    lines += [
        base.says,
        (
            f"Usable: {base.usable_share:.1%} of {format_rate(full.mid)} = {format_rate(usable)}. "
            f"Machines: {format_number(document.rate)} / {format_number(usable)} = {document.rate / usable:.4g}, so "
            f"{pluralize(base.machines, 'machine')}{_range(base)}."
        ),
    ]
    price = document.price_per_hour
    if price is not None and base.cost_per_month is not None and base.cost_per_million is not None:
        hourly = base.machines * price
        lines.append(
            f"Cost: {base.machines:,} x {money(price)} = {money(hourly)} an hour, x {hours_per_month} hours = "
            f"{money(base.cost_per_month)} a month; {money(hourly)} / {format_number(document.rate * 3600)} jobs = "
            f"{money(base.cost_per_million)} for a million."
        )
    return lines


def _range(option: CapacityOption) -> str:
    low, high = option.machines_range or (option.machines, option.machines)
    return "" if low == high else f" ({low:,} to {high:,} within the interval)"


def _best(document: CapacityDocument) -> list[str]:
    base = document.options[0]
    for option in document.options[1:]:
        if option.machines is None or option.note:  # a dearer machine is no saving before its price is known
            continue
        if base.machines is None:
            return [f'With "{option.name}" it can be done: {pluralize(option.machines, "machine")}.']
        if (option.saves_per_month or 0) > 0:
            machines = f"{pluralize(option.machines, 'machine')} instead of {base.machines:,}"
            return [
                f'What saves most: "{option.name}": {machines}, {money(option.saves_per_month or 0.0)} less a month.'
            ]
        if document.price_per_hour is None and option.machines < base.machines:
            return [
                f'What saves most: "{option.name}": {pluralize(option.machines, "machine")} instead of {base.machines:,}.'
            ]
        break
    if len(document.options) == 1:
        return []
    if base.machines is None:
        return ["None of the changes looked at is enough."]
    return ["None of the changes looked at needs fewer machines."]
