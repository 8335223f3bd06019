"""Says in words what a document about more machines holds: first what is left on one, then where it stops being linear."""

from __future__ import annotations

import math

import msgspec

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration, format_number, format_rate
from headrace.runs.formats.machines import MachinesDocument, MachinesRow
from headrace.tune.capacity_words import money

#: From this ratio on one machine's own remedies are the first thing to do.
NOT_YET = 1.1
#: Below this the last machines bring too little to call it linear.
LINEAR = 0.95


def describe(document: MachinesDocument, boot_seconds: float) -> MachinesDocument:
    """Return the document with its sentences."""
    lines = [
        "The device was emulated: its times are settings, and so are the numbers below."
        if document.is_emulated
        else "",
        *_left(document),
        _one(document, boot_seconds),
        *(limit.says for limit in document.limits),
        *_end_of_linear(document),
        _interruptions(document),
        _cheapest(document),
    ]
    return msgspec.structs.replace(document, says=tuple(line for line in lines if line))


def _left(document: MachinesDocument) -> list[str]:
    if not document.left:
        return []
    best = document.left[0]
    if best.ratio < NOT_YET:
        return [f"Nothing large is left on one machine (x{best.ratio:.2g} by {best.name})."]
    fewer = f"what {best.ratio:.2g} machines would bring, for the price of one"
    if document.linear_up_to is not None and best.ratio > document.linear_up_to:
        fewer = "more than what the machines share does for: it has to grow with it"
    return [
        f"Not yet: x{best.ratio:.2g} is left on one machine, by {best.name}: {fewer}. `headrace tune` proves it.",
    ]


def _one(document: MachinesDocument, boot_seconds: float) -> str:
    one = document.one
    own = document.start_seconds - boot_seconds
    start = f"{format_duration(document.start_seconds)} until its first job"
    if boot_seconds and own > 0:
        start += f", {format_duration(own)} of it opening models and warming up"
    return (
        f"One machine does {format_rate(one.mid)} ({format_number(one.low)} to {format_number(one.high)}), with "
        f"{format_number(document.in_flight)} jobs in it; it takes {start}."
    )


def _end_of_linear(document: MachinesDocument) -> list[str]:
    most = document.rows[-1]
    bent = next((row for row in document.rows if row.efficiency < LINEAR), None)
    if bent is None:
        return [f"Up to {pluralize(most.machines, 'machine')} it is linear: the last one brings as much as the first."]
    why = _why(document, bent)
    last = max((row.machines for row in document.rows if row.machines < bent.machines), default=None)
    fine = f"It is linear up to {last:,}: " if last and document.linear_up_to is None else ""
    if document.linear_up_to is not None:
        up_to = document.linear_up_to
        fine = f"It stops being linear at {up_to:.3g} machines: " if up_to >= 1 else "One machine is too many already: "
    lines = [f"{fine}with {bent.machines:,} each does {bent.efficiency:.0%} of what it does alone; {why}."]
    if document.linear_up_to is not None:
        enough = max(1, math.ceil(document.linear_up_to))
        lines.append(f"More than {pluralize(enough, 'machine')} bring nothing before that grows.")
    return lines


def _why(document: MachinesDocument, row: MachinesRow) -> str:
    if row.limited_by:
        limit = next(limit for limit in document.limits if limit.name == row.limited_by)
        return f"{limit.name} does for {format_rate(limit.jobs_per_second)} and is busy {row.busy[limit.name]:.0%} of the time"
    return f"{row.starting_share:.0%} of their time goes into starting, and {row.again_share:.1%} of the jobs are done again"


def _interruptions(document: MachinesDocument) -> str:
    if not document.interruptions_per_hour:
        return ""
    row = document.rows[-1]
    return (
        f"Interruptions, {document.interruptions_per_hour:g} an hour of each machine: {row.interruptions:,} of "
        f"{pluralize(row.machines, 'machine')} in an hour; {row.starting_share:.1%} of their time is starting, and "
        f"{row.again_share:.2%} of the jobs are done again."
    )


def _cheapest(document: MachinesDocument) -> str:
    priced = [row for row in document.rows if row.cost_per_million is not None]
    if not priced:
        return ""
    first, last = priced[0], priced[-1]
    if len(priced) == 1:
        return f"A million jobs cost {money(first.cost_per_million or 0.0)}."
    return (
        f"A million jobs cost {money(first.cost_per_million or 0.0)} with {pluralize(first.machines, 'machine')} and "
        f"{money(last.cost_per_million or 0.0)} with {last.machines:,}."
    )
