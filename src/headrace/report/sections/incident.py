"""Why it was slow: what a flight recorder found changed, with the share of the slowdown that each change explains."""

from __future__ import annotations

from headrace.base.units import format_duration, format_rate
from headrace.report.markup import Html, bullets, note, table, tag
from headrace.report.section import Section
from headrace.runs.formats.incident import IncidentChange, IncidentDocument, Stretch


def incident(document: IncidentDocument | None) -> Section | None:
    """Return the answer, how it was before and then, and the changes; None for a folder that is no incident."""
    if document is None:
        return None
    parts: list[Html] = [
        note(tag("b", document.says)),
        note(f"Written because: {document.trigger.kind}: {document.trigger.says}."),
    ]
    stretches = [("then", document.incident)] + ([("before", document.baseline)] if document.baseline else [])
    rows = [[name, *_figures(stretch)] for name, stretch in stretches]
    parts.append(table(["", "jobs recorded", "rate", "mean latency", "p99", "failed"], rows))
    if document.changes:
        head = ["what changed", "in words", "to do", "explains"]
        parts.append(table(head, [_row(change) for change in document.changes], text_columns=3))
    if document.unchanged:
        parts.append(note(f"Compared, and as before: {', '.join(document.unchanged)}."))
    if document.not_compared:
        parts.append(bullets(f"not compared: {says}" for says in document.not_compared))
    return Section(anchor="incident", title="Why it was slow" if _got_worse(document) else "What happened", parts=parts)


def _got_worse(document: IncidentDocument) -> bool:
    """Return whether jobs took longer, or more of them failed; who asks for an incident may ask at any time."""
    then, before = document.incident, document.baseline
    if before is None or then.latency is None or before.latency is None:
        return True
    return then.latency > before.latency or (then.failed_share or 0.0) > (before.failed_share or 0.0)


def _figures(stretch: Stretch) -> list[str | None]:
    return [
        f"{stretch.jobs:,}",
        None if stretch.rate is None else format_rate(stretch.rate),
        None if stretch.latency is None else format_duration(stretch.latency),
        None if stretch.p99 is None else format_duration(stretch.p99),
        None if stretch.failed_share is None else f"{stretch.failed_share:.1%}",
    ]


def _row(change: IncidentChange) -> list[str | None]:
    kind = f"{change.kind.value} in {change.stage}" if change.stage else change.kind.value
    return [kind, change.says, change.to_do, f"{change.explains_share:.0%}" if change.explains_share else None]
