"""Writes the reference from the table: `python -m headrace.monitor.metrics.document > docs/reference/metrics.md`."""

from __future__ import annotations

import sys

from headrace.monitor.metrics.table import GROUPS, Kind, Label, Merge, Series

_MERGED = {Merge.SUM: "summed", Merge.MAX: "the largest", Merge.MIN: "the smallest"}

_HEAD = """# Metrics

What a scrape of `headrace run` and `headrace serve` with `--metrics` has; [the guide](../guides/monitoring.md) says how to use
it. This page is made from `headrace/monitor/metrics/table.py`. Tests compare the table with scrapes of real runs, both ways.

With `--supervise` a scrape adds up the workers: counters and histograms always, gauges as "workers" says. Counters go on when a
worker dies and another takes its place. Gauges of a worker that is gone are not shown.

A label has the values that stand here, or the names that its line gives: the first 200 of them (or as many as the line says)
keep their name, and the rest is `other`. So nobody who sends jobs can make series.
"""


def as_markdown() -> str:
    """Return the page."""
    parts = [_HEAD]
    for group, series in GROUPS.items():
        parts += [f"## {group}", *map(_section, series)]
    return "\n".join(parts)


def _section(series: Series) -> str:
    unit = f", in {series.unit}" if series.unit else ""
    lines = [
        f"### {series.name}",
        "",
        series.meaning,
        "",
        f"- {series.kind.capitalize()}{unit}. Given by: {series.given}.",
    ]
    lines += [f"- Label `{label.name}`: {_values(label)}." for label in series.labels]
    if series.buckets:
        lines.append(f"- Buckets: {', '.join(f'{bound:g}' for bound in series.buckets)}.")
    if series.kind is Kind.GAUGE:
        lines.append(f"- Workers: {_MERGED[series.merge]}.")
    lines.append(f"- For {series.use}." if series.use == "debugging" else f"- For the {series.use}.")
    return "\n".join([*lines, ""])


def _values(label: Label) -> str:
    if label.values:
        return ", ".join(f"`{value}`" for value in label.values)
    return label.bound + (f"; at most {label.most}" if label.most < 200 else "")


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
