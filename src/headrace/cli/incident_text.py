"""An incident for people: when, why, what changed, and what to do."""

from __future__ import annotations

from pathlib import Path

from headrace.base.units import format_duration, format_rate, format_time
from headrace.runs.formats.incident import IncidentChange, IncidentDocument, Stretch


def as_text(document: IncidentDocument, folder: Path) -> str:
    """Return an incident in lines, the answer first."""
    lines = [
        f"incident {document.id}: {document.pipeline}, process {document.process} on {document.host}",
        f"written because: {document.trigger.kind}: {document.trigger.says}",
        "",
        document.says,
        "",
        _describe("incident", document.incident),
    ]
    if document.baseline is not None:
        lines.append(_describe("before", document.baseline, f" ({document.baseline_source})"))
    lines += ["", f"bottleneck meanwhile: {document.bottleneck}"]
    if document.changes:
        lines += ["", "what changed, that which explains most first:"]
        for change in document.changes:
            lines += [f"  {_share(change):>4}  {change.kind.value}: {change.says}", f"        to do: {change.to_do}"]
    if document.unchanged:
        lines += ["", f"compared, and as before: {', '.join(document.unchanged)}"]
    lines += [f"not compared: {says}" for says in document.not_compared]
    lines += [f"noted: {says}" for says in document.events[-5:]]
    if document.damaged_bytes:
        lines.append(f"{document.damaged_bytes:,} bytes of the recording were damaged and are left out")
    if document.is_emulated:
        lines.append("the device was emulated: its times are made up")
    return "\n".join([*lines, "", f"run folder: {folder}", f"next: headrace report {folder}", ""])


def _describe(name: str, stretch: Stretch, source: str = "") -> str:
    seconds = stretch.to_unix_seconds - stretch.from_unix_seconds
    latency = "no job went all the way" if stretch.latency is None else f"latency {format_duration(stretch.latency)}"
    p99 = f" (p99 {format_duration(stretch.p99)})" if stretch.p99 is not None else ""
    rate = f", {format_rate(stretch.rate)}" if stretch.rate is not None else ""
    failed = f", {stretch.failed_share:.1%} failed" if stretch.failed_share else ""
    return f"{name + ':':<10}{format_time(stretch.from_unix_seconds)}, {seconds:.0f} s: {latency}{p99}{rate}{failed}{source}"


def _share(change: IncidentChange) -> str:
    return f"{change.explains_share:.0%}" if change.explains_share else "-"
