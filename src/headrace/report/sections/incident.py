"""Why it was slow: what a flight recorder found changed, with the share of the slowdown that each change explains."""

from __future__ import annotations

from headrace.base.units import format_duration, format_rate
from headrace.report.markup import Html, bullets, note, sentence, table, tag
from headrace.report.section import Section
from headrace.runs.formats.incident import IncidentChange, IncidentDocument, Stretch

_MEASURES = ("jobs recorded", "rate", "mean latency", "p99", "failed")
_MOST_EVENTS = 5


def incident(document: IncidentDocument | None) -> Section | None:
    """Return the answer, how it was before and then, and the changes; None for a folder that is no incident."""
    if document is None:
        return None
    parts: list[Html] = [
        note(tag("b", document.says)),
        note(f"Written because: {document.trigger.kind}: {document.trigger.says}."),
    ]
    # Measures below one another, and each change a card: nothing of it has to be scrolled for on a phone.
    stretches = [("then", document.incident)] + ([("before", document.baseline)] if document.baseline else [])
    columns = [_figures(stretch) for _, stretch in stretches]
    rows = [[measure, *figures] for measure, *figures in zip(_MEASURES, *columns, strict=True)]
    parts.append(table(["", *(name for name, _ in stretches)], rows))
    if document.changes:
        parts.append(tag("h3", "What changed, that which explains most first"))
        parts.append(tag("div", *map(_card, document.changes), class_="answers"))
    if document.unchanged:
        parts.append(note(f"Compared, and as before: {', '.join(document.unchanged)}."))
    lines = [f"not compared: {says}" for says in document.not_compared]
    noted = [says for says in document.events if document.trigger.says not in says]  # that stands above
    lines += [f"noted: {says}" for says in noted[-_MOST_EVENTS:]]
    if document.damaged_bytes:
        lines.append(f"{document.damaged_bytes:,} bytes of the recording were damaged and are left out")
    if lines:
        parts.append(bullets(lines))
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


def _card(change: IncidentChange) -> Html:
    kind = f"{change.kind.value} in {change.stage}" if change.stage else change.kind.value
    share = f"explains {change.explains_share:.0%}" if change.explains_share else "seen, and explains nothing"
    return tag(
        "div",
        tag("p", f"{kind}: {share}", class_="verdict"),
        tag("p", sentence(change.says)),
        tag("p", tag("b", "To do: "), change.to_do),
        class_="finding open",
    )
