"""The history for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration, format_number, format_time
from headrace.runs.formats.history import BaselineVerdict, HistoryDocument, HistoryLine

_COLUMNS = ("id", "when", "pipeline", "plan", "delivered", "failed", "items/s", "p99", "CPU/item", "bottleneck")


def as_text(document: HistoryDocument, most: int) -> str:
    """Return the newest lines as a table, and what each baseline says."""
    if not document.lines:
        return f"{document.file} has no lines yet: `headrace run --history {document.file}` adds them\n"
    rows = [_COLUMNS, *(_row(line) for line in document.lines[:most])]
    parts = ["\n".join(align_columns(rows, num_left=4))]
    left = len(document.lines) - most
    if left > 0:
        parts.append(f"and {pluralize(left, 'older line')}; -n shows more")
    parts += [_verdict(verdict) for verdict in document.baselines]
    parts += ["\n".join(wrap_lines([f"warning: {warning}"])) for warning in document.warnings]
    return "\n\n".join(parts) + "\n"


def line_as_text(line: HistoryLine) -> str:
    """Return all that is known of one line."""
    rows = [
        ("line", f"{line.id}, {line.kind}{f', {line.status}' if line.status else ''}"),
        ("began", format_time(line.began_unix_seconds)),
        ("ended", "-" if line.ended_unix_seconds is None else format_time(line.ended_unix_seconds)),
        ("pipeline", line.pipeline),
        ("plan", line.plan_id),
        ("machine", line.machine_says),
        ("headrace, Python", f"{line.headrace_version}, {line.python}"),
        ("pipeline's file", line.module_sha256 or "-"),
        ("delivered, failed", f"{line.delivered:,}, {line.failed:,}"),
        ("items per second", format_number(line.throughput)),
        (
            "latency p50, p90, p99",
            ", ".join(map(format_duration, (line.latency_p50, line.latency_p90, line.latency_p99))),
        ),
        ("bottleneck", line.bottleneck or "-"),
        ("efficiency", "-" if line.efficiency is None else f"{line.efficiency:.0%}"),
        ("folder", line.folder or "-"),
        *((f"CPU per item, {stage}", format_duration(cost)) for stage, cost in line.cpu_per_item.items()),
    ]
    text = "\n".join(align_columns(rows, num_left=2))
    return text + (f"\n\n{line.says}\n" if line.says else "\n")


def _row(line: HistoryLine) -> Sequence[str]:
    when, name = format_time(line.began_unix_seconds), line.pipeline
    if line.kind == "restart":
        return (line.id, when, name, "", "", "", "", "", "", f"new baseline: {line.says}")
    cost = sum(line.cpu_per_item.values()) if line.cpu_per_item else None
    return (
        line.id, when, name, line.plan_id, f"{line.delivered:,}", f"{line.failed:,}", format_number(line.throughput),
        format_duration(line.latency_p99), format_duration(cost), _says(line),
    )  # fmt: skip


def _says(line: HistoryLine) -> str:
    """Return the bottleneck; of an incident what happened, as far as it fits: `headrace history show` has all of it."""
    return (
        textwrap.shorten(f"incident: {line.says}", 60, placeholder="...")
        if line.kind == "incident"
        else line.bottleneck
    )


def _verdict(verdict: BaselineVerdict) -> str:
    head = f"{verdict.pipeline}, plan {verdict.plan_id}, on {verdict.machine_says}"
    counts = (
        f"baseline: {verdict.num_reference} windows since {format_time(verdict.since_unix_seconds)}; "
        f"{verdict.num_compared} compared"
    )
    lines = [
        head,
        *([counts] if verdict.num_reference else []),
        *(stage.says for stage in verdict.stages),
        verdict.says,
    ]
    return "\n".join(wrap_lines(lines))
