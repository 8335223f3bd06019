"""All processes of a run: when each worked, what it did, and what only all of them together show."""

from __future__ import annotations

from headrace.base.formatting import pluralize
from headrace.report.charts import horizontal_bars
from headrace.report.markup import bullets, note, table
from headrace.report.numbers import count, rate, seconds
from headrace.report.section import Section
from headrace.runs.formats.whole import WholeDocument

#: Bars that a page can show; the table has all.
_MOST_BARS = 60


def members(document: WholeDocument) -> Section:
    """Return the members of a run."""
    drawn = [member for member in document.members if member.to_seconds is not None][:_MOST_BARS]
    begins = [member.from_seconds for member in drawn]
    lengths = [(member.to_seconds or 0.0) - (member.from_seconds or 0.0) for member in drawn]
    chart = horizontal_bars(
        "members",
        "When each worked",
        "a bar for each process, from its first job to its last",
        [f"{member.name} {member.host}" if len(document.hosts) > 1 else member.name for member in drawn],
        {"before": ("transparent", begins), "at work": ("var(--cpu)", lengths)},
        "s",
        axis_name="seconds since the first job of all",
        stacked=True,
    )
    whole = note(
        count(document.delivered), " delivered, ", count(document.failed), " failed by ",
        f"{len(document.members)} processes on {pluralize(len(document.hosts), 'host')} in ",
        seconds(document.elapsed_seconds), ", ",
        rate(document.throughput), f" together. The rest of this page is about the one in the middle, {document.middle}.",
    )  # fmt: skip
    head = ["process", "host", "limited by", "delivered", "failed", "from", "to", "rate"]
    rows = [
        [
            member.name, member.host, member.describe_limit(), count(member.delivered), count(member.failed),
            seconds(member.from_seconds), seconds(member.to_seconds), rate(member.throughput),
        ]
        for member in document.members
    ]  # fmt: skip
    return Section(
        anchor="members",
        title="All processes of the run",
        parts=[
            whole,
            bullets([*document.notes, *document.problems]),
            chart.element(),
            table(head, rows, text_columns=3),
        ],
        charts=[chart],
    )
