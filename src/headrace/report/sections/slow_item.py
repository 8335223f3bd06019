"""One slow item on its way through the stages."""

from __future__ import annotations

from headrace.report.charts import Chart, axis, category_axis, plot, shorten
from headrace.report.markup import Html, fold, note, table, tag
from headrace.report.numbers import count, digits, seconds, time_scale
from headrace.report.section import Section
from headrace.runs.formats.profile import ItemPath, PathSpan, ProfileDocument

#: (name, colour, from, to): what a span is cut into.
_PIECES = (
    ("queue wait", "var(--wait)", "arrived", "dequeued"),
    ("setup", "var(--setup)", "dequeued", "started"),
    ("service", "var(--service)", "started", "ended"),
    ("blocked by next queue", "var(--blocked-put)", "ended", "put"),
)
#: Rows that a chart and a table can show; an item cut into thousands has all its passages in the run folder's spans.
_MOST_ROWS = 40
_MOST_TABLE_ROWS = 300


def slow_item(document: ProfileDocument) -> Section | None:
    """Return the Gantt chart of the slow item, and its table."""
    path = document.slow_item
    if path is None or not path.spans:
        return None
    chart = _gantt(path)
    left_out = len(path.spans) - _MOST_ROWS
    return Section(
        anchor="slow-item",
        title="A slow item's path",
        parts=[
            note("Item ", tag("code", path.unit_id), " took ", seconds(path.latency),
                 ", the longest of all." if path.percentile >= 100 else f", no less than {path.percentile:.4g} % of the items.",
                 f" The first {_MOST_ROWS} of its {len(path.spans):,} passages are drawn." if left_out > 0 else None),
            chart.element(),
            fold(_table_title(len(path.spans)), _table(path)),
        ],
        charts=[chart],
    )  # fmt: skip


def _gantt(path: ItemPath) -> Chart:
    spans = path.spans[:_MOST_ROWS]
    factor, unit = time_scale([path.latency])
    series = [
        {
            "type": "custom",
            "name": name,
            "renderItem": "stretch",
            "encode": {"x": [0, 1], "y": 2},
            "itemStyle": {"color": color},
            "data": [
                {"value": [getattr(span, start) * factor, getattr(span, end) * factor, row],
                 "tip": _tip(span, name, getattr(span, end) - getattr(span, start), factor, unit)}
                for row, span in enumerate(spans)
                if getattr(span, end) > getattr(span, start)
            ],
        }
        for name, color, start, end in _PIECES
    ]  # fmt: skip
    drawn = [one for one in series if one["data"]]
    return plot(
        "slow-item",
        "Where it waited and where it was worked on",
        f"each stage's wait, service and block in {unit} since the item arrived",
        drawn,
        x_axis=axis(f"{unit} since arrival", low=0, high=path.latency * factor),
        y_axis=category_axis([_row_name(span, path) for span in spans]),
        height=48 + 26 * len(spans),
        legend={name: color for name, color, *_ in _PIECES if any(one["name"] == name for one in drawn)},
    )


def _row_name(span: PathSpan, path: ItemPath) -> str:
    """Return the stage, and the part of the item that it worked on if the item was cut into several."""
    return span.stage if span.unit_id == path.unit_id else f"{span.stage} · {shorten(span.unit_id, 14)}"


def _tip(span: PathSpan, name: str, length: float, factor: float, unit: str) -> list[list[str]]:
    return [["stage", span.stage], [name, f"{digits(length * factor)} {unit}"], ["worker", span.worker]]


def _table_title(num_spans: int) -> str:
    if num_spans <= _MOST_TABLE_ROWS:
        return "Its passages as a table"
    return f"Its first {_MOST_TABLE_ROWS} passages of {num_spans:,} as a table"


def _table(path: ItemPath) -> Html:
    rows = [
        [
            span.stage,
            tag("code", span.unit_id),
            span.worker,
            span.outcome,
            seconds(span.arrived),
            *(seconds(getattr(span, end) - getattr(span, start)) for _, _, start, end in _PIECES),
            seconds(span.cpu),
            seconds(span.run_delay),
            count(span.batch_size),
        ]
        for span in path.spans[:_MOST_TABLE_ROWS]
    ]
    head = [
        "stage",
        "unit",
        "worker",
        "outcome",
        "arrived at",
        *(name for name, *_ in _PIECES),
        "CPU",
        "run delay",
        "batch",
    ]
    return table(head, rows, text_columns=4)
