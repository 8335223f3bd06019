"""A run of several processes for a terminal: all of them in a table, what they show together, and the one in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration, format_rate
from headrace.cli import diagnosis_text

if TYPE_CHECKING:
    from headrace.runs.formats.whole import Member, WholeDocument

#: Members of which each has a line; of more, those at both ends of their throughputs.
_MOST_LINES = 24


def as_text(document: WholeDocument) -> str:
    """Return the document as plain text."""
    count, hosts = len(document.members), pluralize(len(document.hosts), "host")
    head = (
        f"{document.run}: {count} process{'es' * (count != 1)} on {hosts}; {document.delivered:,} delivered, "
        f"{document.failed:,} failed in {format_duration(document.elapsed_seconds)}: {format_rate(document.throughput)}"
    )
    problems = [f"warning: {problem}" for problem in document.problems]
    lines = [*wrap_lines([head]), "", *_table(document), ""]
    lines += [*wrap_lines([f"- {says}" for says in (*document.notes, *problems)]), ""]
    lines += [f"The process in the middle, {document.middle}:", ""]
    return "\n".join(lines) + "\n" + diagnosis_text.as_text(document.diagnosis)


def _table(document: WholeDocument) -> list[str]:
    members = list(document.members)
    left_out = len(members) - _MOST_LINES
    if left_out > 0:
        by_rate = sorted(members, key=lambda member: member.throughput or 0.0)
        kept = {member.name for member in (*by_rate[: _MOST_LINES // 2], *by_rate[-_MOST_LINES // 2 :])}
        members = [member for member in members if member.name in kept]
    has_hosts = len(document.hosts) > 1
    rows = [_row(member, has_hosts) for member in members]
    head = ["process", *(["host"] if has_hosts else []), "delivered", "failed", "from", "to", "rate", "limited by"]
    more = [f"and {left_out:,} more between the slowest and the fastest; --json has all"] if left_out > 0 else []
    aligned = align_columns([row[:-1] for row in (head, *rows)], num_left=1 + has_hosts)
    lines = [f"{line}  {row[-1]}" for line, row in zip(aligned, (head, *rows), strict=True)]
    return [f"  {line}" for line in (*lines, *more)]


def _row(member: Member, has_hosts: bool) -> list[str]:
    times = [format_duration(seconds) for seconds in (member.from_seconds, member.to_seconds)]
    return [
        member.name, *([member.host] if has_hosts else []), f"{member.delivered:,}", f"{member.failed:,}", *times,
        format_rate(member.throughput), member.describe_limit() or "-",
    ]  # fmt: skip
