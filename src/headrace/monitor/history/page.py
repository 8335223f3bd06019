"""The page of a history: which stages got slower, CPU time and throughput over time, what was decided and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.base.formatting import pluralize
from headrace.base.units import format_duration, format_number, format_time
from headrace.monitor.history.baseline import Window, as_window
from headrace.monitor.history.judging import compare_windows
from headrace.report.charts import PALETTE, Chart, axis, plot, vertical_marks
from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, note, sentence, table, tag
from headrace.report.numbers import moment
from headrace.report.section import Section
from headrace.runs.formats.history import BaselineVerdict, HistoryDocument, HistoryLine, HistoryWindow, StageDrift
from headrace.runs.run_folder import headrace_version

#: Windows that a chart shows, the newest; a screen has no room for more.
_MOST_POINTS = 1000
_CPU_NOTE = (
    "CPU time per item over what the baseline takes for items of the same size; 100 % is the baseline. Where all lines move "
    "together it is the machine's speed, which the verdicts above take out."
)
#: Lines of the table.
_MOST_LINES = 200
_Windows = Sequence[tuple[str, HistoryWindow]]
_Marks = Sequence[tuple[float, str]]
_VERDICTS = {"same": "the same", "slower": "slower", "faster": "faster", "cannot_tell": "cannot tell yet"}


def render_history(document: HistoryDocument, windows: Sequence[_Windows]) -> str:
    """Return the page as an HTML document.

    Args:
        document: What is to be said.
        windows: Of each of its baselines, (key of the run, window).
    """
    runs = sum(line.kind == "run" for line in document.lines)
    incidents = sum(line.kind == "incident" for line in document.lines)
    slower = [(one, stage) for one in document.baselines for stage in one.stages if stage.verdict == "slower"]
    overview = tag(
        "header",
        tag("p", "headrace · history ", tag("b", document.file), class_="kicker"),
        tag("h1", _headline(slower)),
        tag("p", f"{pluralize(runs, 'run')}, {pluralize(incidents, 'incident')}."),
        bullets(f"{stage.says} ({one.pipeline})" for one, stage in slower) if slower else None,
        *(tag("p", sentence(warning)) for warning in document.warnings),
    )
    sections = [
        _baseline(number, verdict, own, document)
        for number, (verdict, own) in enumerate(zip(document.baselines, windows, strict=True))
    ]
    sections += [found for found in (_news(document), _lines(document)) if found is not None]
    footer = f"Made by headrace {headrace_version()}. A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    return make_page(document.file, overview, sections, footer)


def _headline(slower: Sequence[tuple[BaselineVerdict, StageDrift]]) -> str:
    if not slower:
        return "No stage is known to be slower than it was"
    return f"{pluralize(len(slower), 'stage')} slower than in the baseline"


def _baseline(number: int, verdict: BaselineVerdict, found: _Windows, document: HistoryDocument) -> Section:
    windows = [as_window(key, window) for key, window in found]
    marks = _marks(document, verdict, windows[0].began if windows else 0.0)
    cpu = _cpu_chart(number, compare_windows(windows, verdict.num_reference), windows, marks)
    rate = _rate_chart(number, found, marks)
    parts: list[Html | None] = [
        tag("p", verdict.says),
        note(f"Plan {verdict.plan_id} on {verdict.machine_says}. {_count(verdict)}"),
        _stage_table(verdict.stages) if verdict.stages else None,
        cpu.element() if cpu else None,
        note(_CPU_NOTE) if cpu else None,
        rate.element() if rate else None,
    ]
    charts = [chart for chart in (cpu, rate) if chart is not None]
    title = f"{verdict.pipeline}, plan {verdict.plan_id}"
    return Section(anchor=f"baseline-{number}", title=title, parts=[part for part in parts if part], charts=charts)


def _count(verdict: BaselineVerdict) -> str:
    if not verdict.num_reference:
        return ""
    return (
        f"The baseline is {pluralize(verdict.num_reference, 'window')} from {format_time(verdict.since_unix_seconds)} on; "
        f"{pluralize(verdict.num_compared, 'window')} compared with it."
    )


def _stage_table(stages: Sequence[StageDrift]) -> Html:
    rows = [
        [
            stage.stage, tag("b", _VERDICTS[stage.verdict]) if stage.verdict == "slower" else _VERDICTS[stage.verdict],
            _percent(stage.ratio), _percent(stage.low), _percent(stage.high),
            None if stage.since_unix_seconds is None else format_time(stage.since_unix_seconds),
        ]
        for stage in stages
    ]  # fmt: skip
    head = ["stage", "verdict", "CPU time per item", "from", "to", "since"]
    return table(head, rows, text_columns=2, caption="Stages against the baseline, with 95 % intervals")


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * (ratio - 1):+z.1f} %"


def _marks(document: HistoryDocument, verdict: BaselineVerdict, since: float) -> _Marks:
    """Return the decisions, incidents and new baselines since then, (Unix seconds, id)."""
    decisions = [(one.at_unix_seconds, one.id) for one in document.annotations]
    lines = [
        (line.began_unix_seconds, line.id)
        for line in document.lines
        if line.kind != "run" and line.pipeline in ("", verdict.pipeline)
    ]
    return sorted((at, name) for at, name in (*decisions, *lines) if at >= since)


def _cpu_chart(
    number: int, ratios: Mapping[str, Sequence[float | None]], windows: Sequence[Window], marks: _Marks
) -> Chart | None:
    if not ratios:
        return None
    lines = {
        stage: [
            (window.began, 100 * ratio, [[stage, f"{100 * ratio:.1f} %"], ["from", format_time(window.began)]])
            for window, ratio in zip(windows, values, strict=True)
            if ratio is not None
        ]
        for stage, values in ratios.items()
    }
    return _over_time(
        f"cpu-{number}",
        "CPU time per item at equal input",
        "one line per stage over time",
        lines,
        "% of the baseline",
        marks,
    )


def _rate_chart(number: int, found: _Windows, marks: _Marks) -> Chart | None:
    points = [
        (
            window.began_unix_seconds, window.delivered / window.seconds,
            [["items/s", format_number(window.delivered / window.seconds)], ["from", format_time(window.began_unix_seconds)]],
        )
        for _, window in found
        if window.seconds > 0
    ]  # fmt: skip
    if not points:
        return None
    return _over_time(
        f"rate-{number}", "Throughput", "items per second over time", {"items/s": points}, "items/s", marks
    )


def _over_time(
    name: str,
    title: str,
    says: str,
    lines: Mapping[str, Sequence[tuple[float, float, list[list[str]]]]],
    unit: str,
    marks: _Marks,
    *,
    from_zero: bool = False,
) -> Chart:
    colors = {line: PALETTE[number % len(PALETTE)] for number, line in enumerate(lines)}
    series: list[dict[str, Any]] = [
        {
            "type": "line", "name": line, "symbolSize": 5, "itemStyle": {"color": colors[line]},
            "lineStyle": {"color": colors[line], "width": 1},
            "data": [{"value": [round(1000 * at), value], "tip": tip} for at, value, tip in points[-_MOST_POINTS:]],
        }
        for line, points in lines.items()
    ]  # fmt: skip
    if series and marks:
        series[0]["markLine"] = vertical_marks([(round(1000 * at), label) for at, label in marks])
    x_axis = {**axis(), "type": "time"}
    y_axis = axis(low=0) if from_zero else {**axis(), "scale": True}
    return plot(name, title, says, series, x_axis=x_axis, y_axis=y_axis, upright=unit, legend=colors)


def _news(document: HistoryDocument) -> Section | None:
    rows = [(one.at_unix_seconds, [one.id, "decision", one.says]) for one in document.annotations]
    kinds = {"incident": "incident", "restart": "new baseline"}
    rows += [
        (line.began_unix_seconds, [line.id, kinds[line.kind], f"{line.pipeline}: {line.says}"])
        for line in document.lines
        if line.kind != "run"
    ]
    if not rows:
        return None
    body = [[moment(at), *cells] for at, cells in sorted(rows, reverse=True)]
    shown = table(
        ["when", "", "what", "says"], body, text_columns=4, caption="Decisions and incidents, the newest first"
    )
    return Section(anchor="news", title="Decisions and incidents", parts=[shown])


def _lines(document: HistoryDocument) -> Section | None:
    runs = [line for line in document.lines if line.kind == "run"]
    if not runs:
        return None
    head = [
        "",
        "when",
        "pipeline",
        "plan",
        "bottleneck",
        "delivered",
        "failed",
        "items/s",
        "p50",
        "p99",
        "CPU per item",
    ]
    parts = [
        table(head, [_line(line) for line in runs[:_MOST_LINES]], text_columns=5, caption="Runs, the newest first")
    ]
    if len(runs) > _MOST_LINES:
        parts.append(note(f"{pluralize(len(runs) - _MOST_LINES, 'older run')} not shown."))
    return Section(anchor="runs", title="Runs", parts=parts)


def _line(line: HistoryLine) -> list[str | None]:
    return [
        line.id, moment(line.began_unix_seconds), line.pipeline, line.plan_id, line.bottleneck or None,
        f"{line.delivered:,}", f"{line.failed:,}", _shown(format_number(line.throughput)),
        _shown(format_duration(line.latency_p50)), _shown(format_duration(line.latency_p99)),
        format_duration(sum(line.cpu_per_item.values())) if line.cpu_per_item else None,
    ]  # fmt: skip


def _shown(text: str) -> str | None:
    return None if text == "-" else text
