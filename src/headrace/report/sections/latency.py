"""How long items took from arrival to settlement."""

from __future__ import annotations

from typing import Literal

from headrace.report.charts import Chart, axis, plot, vertical_marks
from headrace.report.markup import Html, fold, note, table
from headrace.report.numbers import count, digits, ratio, seconds, time_scale
from headrace.report.section import Section
from headrace.runs.formats.profile import Distribution, ProfileDocument

#: Bins that grow by more than this from the first to the last are meant for a logarithmic axis.
_LOGARITHMIC_FROM = 5


def latency(document: ProfileDocument) -> Section | None:
    """Return the histogram with p50, p90 and p99, and its numbers."""
    sample = document.latency
    if not sample.num_samples:
        return None
    has_bins = len(sample.bin_edges) == len(sample.bin_counts) + 1 and any(sample.bin_counts)
    charts = [histogram("latency", "Latency of items", sample)] if has_bins else []
    return Section(
        anchor="latency",
        title="Latency",
        parts=[
            *(chart.element() for chart in charts),
            note("From the arrival of a job to its settlement, in the steady part. A percentile is quoted only from enough "
                 "samples: at least two must lie above it with 99 % confidence."),
            _summary(sample),
            *([fold("Histogram as a table", _bins(sample))] if has_bins else []),
        ],
        charts=charts,
    )  # fmt: skip


def histogram(name: str, title: str, sample: Distribution) -> Chart:
    """Return a histogram of times with its quotable percentiles marked."""
    edges = sample.bin_edges
    factor, unit = time_scale(edges)
    first, last = edges[1] - edges[0], edges[-1] - edges[-2]
    kind: Literal["value", "log"] = "log" if edges[0] > 0 and last > _LOGARITHMIC_FROM * first else "value"
    bars = [
        {
            "value": [low * factor, high * factor, num],
            "tip": [["from", f"{digits(low * factor)} {unit}"], ["to", f"{digits(high * factor)} {unit}"],
                    ["items", f"{num:,}"]],
        }
        for low, high, num in zip(edges, edges[1:], sample.bin_counts, strict=False)
        if num
    ]  # fmt: skip
    marks = [(q.value * factor, f"p{q.percent:g}") for q in sample.percentiles if q.value is not None]
    return plot(
        name,
        title,
        f"items by time in {unit}, with percentiles",
        [
            {
                "type": "custom",
                "renderItem": "bin",
                "encode": {"x": [0, 1], "y": 2},
                "data": bars,
                "itemStyle": {"color": "var(--service)"},
            },
            {"type": "line", "data": [], "silent": True, "markLine": vertical_marks(marks)},
        ],
        x_axis=axis(unit, kind=kind, low=edges[0] * factor, high=edges[-1] * factor),
        y_axis=axis(),
        upright="items",
    )


def _summary(sample: Distribution) -> Html:
    named = [(f"p{q.percent:g}", seconds(q.value) or f"- (needs {q.num_needed:,} samples)") for q in sample.percentiles]
    rows = [
        ("samples", count(sample.num_samples)),
        ("mean", seconds(sample.mean)),
        ("smallest", seconds(sample.minimum)),
        *named,
        ("largest", seconds(sample.maximum)),
    ]
    return table(["latency", "value"], rows)


def _bins(sample: Distribution) -> Html:
    rows = [
        [seconds(low), seconds(high), count(num), ratio(num / sum(sample.bin_counts))]
        for low, high, num in zip(sample.bin_edges, sample.bin_edges[1:], sample.bin_counts, strict=False)
    ]
    return table(["from", "to", "items", "share"], rows, text_columns=0)
