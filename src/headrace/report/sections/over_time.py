"""What the run and its machine did from second to second: work and queues, then resources."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.report.charts import Chart, over_time
from headrace.report.markup import DASH, Html, fold, note, sentence, table, tag
from headrace.report.numbers import data, digits, scale, size
from headrace.report.section import Section
from headrace.runs.formats.profile import MemoryGrowth, ProfileDocument, Series, Window

Line = Sequence[tuple[float, float | None]]

#: More cores than this are drawn as the busiest, the middle one and the idlest.
_MOST_CORES = 8
#: More lines than this in one chart cannot be told apart; those with the largest means are drawn.
_MOST_LINES = 8
_GRID_POINTS = 150
#: Rows of a chart's table.
_ROWS = 20
#: What the chart's unit says already.
_UNIT_SUFFIX = re.compile("^num_|(_bytes)?_per_second$|_(ratio|bytes|hertz|watts|celsius)$")


@dataclass(frozen=True)
class _Group:
    """Series that share a chart."""

    name: str
    title: str
    holds: Callable[[Series], bool]
    maximum: float | None = None
    unit: str = ""
    """Shown for series whose own unit is only a count."""


def _in(*prefixes: str, unit: str = "", names: Sequence[str] = ()) -> Callable[[Series], bool]:
    def holds(series: Series) -> bool:
        return (
            series.scope.startswith(prefixes)
            and (not unit or series.unit == unit)
            and (not names or series.name in names)
        )

    return holds


_WORK = (
    _Group("throughput", "Throughput", _in("run", unit="items/s")),
    _Group("queues", "Items waiting in each queue", _in("stage:", names=("queue_depth",)), unit="items"),
    _Group("workers", "Workers at work", _in("stage:", names=("busy_workers",)), unit="workers"),
    _Group("producers", "Workers waiting to hand on", _in("stage:", names=("waiting_producers",)), unit="workers"),
    _Group("in-flight", "Items in flight", _in("run", names=("in_flight",)), unit="items"),
    _Group("queue-bytes", "Bytes waiting in each queue", _in("stage:", unit="bytes")),
)
_RESOURCES = (
    _Group("cores", "CPU, core by core", lambda series: is_core(series), 100),
    _Group(
        "cpu",
        "CPU in use",
        _in("machine", "processes", names=("cpu_busy_cores", "cpu_cores", "other_cpu_cores")),
        unit="cores",
    ),
    _Group("pressure", "Pressure, steal and throttling", _in("machine", "processes", unit="ratio")),
    _Group("memory", "Memory", _in("machine", "processes", unit="bytes")),
    _Group("disk", "Disk", _in("disk:", unit="bytes/s")),
    _Group("disk-busy", "Disk at work", _in("disk:", unit="ratio"), 100),
    _Group("network", "Network", _in("network:", unit="bytes/s")),
    _Group("process-io", "Storage and swap", _in("machine", "processes", unit="bytes/s")),
    _Group("events", "Page faults and switches between threads", _in("processes", unit="1/s")),
    _Group(
        "counts",
        "Threads, processes and open files",
        _in("processes", names=("num_processes", "open_files", "threads")),
    ),
    _Group("gpu", "GPU in use", _in("gpu", unit="ratio"), 100),
    _Group("gpu-memory", "GPU memory", _in("gpu", unit="bytes")),
    _Group("gpu-clock", "GPU clocks", _in("gpu", unit="hertz")),
    _Group("gpu-power", "GPU power", _in("gpu", unit="watts")),
    _Group("gpu-heat", "GPU temperature", _in("gpu", unit="celsius")),
)


def is_core(series: Series) -> bool:
    """Return whether it is how busy one core was."""
    return series.scope.startswith("cpu") and series.scope[3:].isdecimal() and series.unit == "ratio"


def work_over_time(document: ProfileDocument) -> Section | None:
    """Return throughput, queues and workers over time."""
    charts = _charts(document, _WORK)
    if not charts:
        return None
    told = [series for series in document.series if series.scope == "run" or series.scope.startswith("stage:")]
    return Section(
        anchor="over-time",
        title="Throughput and queues over time",
        parts=[
            _draw_shading(document.window),
            _grid(charts),
            note(
                "Queues and workers are sampled from inside the process, which has to wait for Python's interpreter lock: a "
                "worker that holds it is seldom seen at work. Its busy share in the table of stages is exact."
            ),
            fold("Means and maxima", _table(told)),
            _values(charts, document.elapsed_seconds),
        ],
        charts=charts,
    )


def resources(document: ProfileDocument) -> Section | None:
    """Return CPU, memory, disk, network, pressure and GPU over time."""
    charts = _charts(document, _RESOURCES)
    told = [series for series in document.series if not series.scope.startswith(("run", "stage:"))]
    if not told:
        return None
    return Section(
        anchor="resources",
        title="Resources over time",
        parts=[
            _draw_shading(document.window),
            *([_memory_growth(document.memory_growth)] if document.memory_growth else []),
            _grid(charts),
            fold("Means and maxima", _table(told)),
            *([_values(charts, document.elapsed_seconds)] if charts else []),
        ],
        charts=charts,
    )


def _charts(document: ProfileDocument, groups: Iterable[_Group]) -> list[Chart]:
    found = ((group, [one for one in document.series if group.holds(one) and one.points]) for group in groups)
    return [chart for group, members in found for chart in _draw(group, members, document)]


def _draw(group: _Group, members: list[Series], document: ProfileDocument) -> list[Chart]:
    """Return the chart of a group; one for each unit if they differ."""
    made = []
    for index, unit in enumerate(dict.fromkeys(series.unit for series in members)):
        same = [series for series in members if series.unit == unit]
        factor, shown = scale((series.maximum for series in same), unit)
        lines = _cores(same) if group.name == "cores" else _lines(same)
        chart = over_time(
            f"time-{group.name}" if index == 0 else f"time-{group.name}-{index}",
            group.title,
            {
                name: [(at, None if value is None else value * factor) for at, value in line]
                for name, line in lines.items()
            },
            group.unit or shown,
            until=max(document.elapsed_seconds, *(series.points[-1].at_seconds for series in same)),
            shaded=_find_shaded(document),
            maximum=group.maximum,
        )
        made.append(chart)
    return made


def _lines(members: list[Series]) -> dict[str, Line]:
    chosen = sorted(members, key=lambda series: -series.mean)[:_MOST_LINES]
    several_names = len({series.name for series in chosen}) > 1
    several_scopes = len({series.scope for series in chosen}) > 1
    return {_label(series, several_names, several_scopes): _pairs(series) for series in members if series in chosen}


def _label(series: Series, several_names: bool, several_scopes: bool) -> str:
    scope = series.scope.split(":", 1)[-1]
    name = _UNIT_SUFFIX.sub("", series.name).replace("_", " ")
    if not several_names and several_scopes:
        return scope
    return f"{scope}: {name}" if several_scopes else name


def _cores(members: list[Series]) -> dict[str, Line]:
    if len(members) <= _MOST_CORES:
        return {series.scope: _pairs(series) for series in members}
    start = min(series.points[0].at_seconds for series in members)
    end = max(series.points[-1].at_seconds for series in members)
    columns = [_resample(_pairs(series), start, end, _GRID_POINTS) for series in members]
    lines: dict[str, list[tuple[float, float | None]]] = {"busiest core": [], "middle core": [], "idlest core": []}
    for index in range(_GRID_POINTS):
        at = start + (index + 0.5) * (end - start) / _GRID_POINTS
        values = sorted(value for column in columns if (value := column[index]) is not None)
        picked = (values[-1], values[len(values) // 2], values[0]) if values else (None, None, None)
        for line, value in zip(lines.values(), picked, strict=True):
            line.append((at, value))
    return dict(lines)


def _pairs(series: Series) -> Line:
    return [(point.at_seconds, point.value) for point in series.points]


def _resample(points: Line, start: float, end: float, num: int) -> list[float | None]:
    """Return one value for each of `num` equal stretches: the mean of its points, or the value before it if it has none."""
    found: list[list[float]] = [[] for _ in range(num)]
    width = (end - start) / num or math.inf
    for at, value in points:
        if value is not None and math.isfinite(value) and start <= at <= end:
            found[min(int((at - start) / width), num - 1)].append(value)
    values: list[float | None] = []
    for inside in found:
        values.append(sum(inside) / len(inside) if inside else values[-1] if values else None)
    return values


def _find_shaded(document: ProfileDocument) -> list[tuple[float, float]]:
    window, last = document.window, document.elapsed_seconds
    stretches = ((0.0, window.from_seconds), (window.to_seconds, last))
    return [(start, end) for start, end in stretches if end > start]


def _draw_shading(window: Window) -> Html:
    if window.from_seconds <= 0:
        if window.is_steady is None:
            return note("Nothing is shaded: ", window.says, ".")
        return note("No warm-up was found: nothing is shaded.")
    return note(
        f"Shaded: warm-up, {window.from_seconds:.3g} s, and what came after the steady part. Numbers elsewhere on this page "
        "leave both out."
    )


def _memory_growth(growth: MemoryGrowth) -> Html:
    low, mid, high = (_size(value) for value in (
        growth.bytes_per_1000_items.low, growth.bytes_per_1000_items.mid, growth.bytes_per_1000_items.high))  # fmt: skip
    badge = tag("span", growth.verdict, class_=f"badge {'warning' if growth.verdict == 'growing' else 'plain'}")
    return note(
        tag("b", "Memory growth "),
        badge,
        " ",
        mid,
        " per 1,000 items (95 % interval ",
        low,
        " to ",
        high,
        "). ",
        sentence(growth.reason),
    )


def _size(value: float) -> Html:
    return size(value) or tag("span", DASH)


def _grid(charts: Sequence[Chart]) -> Html:
    return tag("div", *(chart.element() for chart in charts), class_="grid")


def _table(told: Sequence[Series]) -> Html:
    rows = [
        [one.scope, one.name.replace("_", " "), data(one.mean, one.unit), data(one.maximum, one.unit)] for one in told
    ]
    return table(["scope", "what", "mean", "largest"], rows, text_columns=2)


def _values(charts: Sequence[Chart], end: float) -> Html:
    """Return the charts' numbers as tables: means over equal stretches of the run."""
    return fold("Values over time as tables", *(part for chart in charts for part in _stretches(chart, end)))


def _stretches(chart: Chart, end: float) -> tuple[Html, Html]:
    columns = [_resample(line["data"], 0.0, end, _ROWS) for line in chart.option["series"]]
    rows = [
        [
            f"{end * row / _ROWS:.4g} s",
            *(None if column[row] is None else digits(column[row] or 0.0) for column in columns),
        ]
        for row in range(_ROWS)
    ]
    unit = f", {chart.upright}" if chart.upright else ""
    return tag("h3", f"{chart.title}{unit}"), table(["from", *(line["name"] for line in chart.option["series"])], rows)
