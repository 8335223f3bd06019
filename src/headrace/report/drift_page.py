"""The page of a drift monitor: what moved and since when, its course over windows, and what the baseline can show."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from headrace.report.charts import Chart, axis, plot, vertical_marks
from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, sentence, table, tag
from headrace.report.numbers import count, digits, ratio
from headrace.report.section import Section
from headrace.runs.formats.drift import DriftDocument, DriftPoint, Score, SlowerStage
from headrace.runs.run_folder import headrace_version

_TITLES = {
    "steady": "Nothing has drifted",
    "drift": "Something has drifted",
    "recording": "Recording; there is no baseline yet",
}
#: Evidence from which a statistic is not as usual, and no alarm yet.
_UNSURE = 0.5
_SIZES = {"pixels": "pixels of an image", "bytes": "bytes of a file"}
_VALUE, _BAND, _SIZE = "var(--c5)", "var(--muted)", "var(--c1)"


def render_drift(document: DriftDocument) -> str:
    """Return the page as an HTML document."""
    overview = tag(
        "header",
        tag("p", "headrace · drift of ", tag("b", document.folder), class_="kicker"),
        tag("h1", _title(document)),
        bullets([sentence(line) for line in document.says]),
        tag("p", f"{document.windows:,} windows of {document.items:,} items; {_stretch(document)}.", class_="note"),
    )
    sections = [_slower(document), _course(document), _scores(document), _refusals(document), _limits(document)]
    footer = f"Made by headrace {headrace_version()}. A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    return make_page(f"drift of {document.folder}", overview, [one for one in sections if one], footer)


def _title(document: DriftDocument) -> str:
    is_new = document.verdict == "steady" and not document.windows
    return "Nothing was judged yet" if is_new else _TITLES[document.verdict]


def _stretch(document: DriftDocument) -> str:
    if document.began is None or document.ended is None:
        return "nothing was seen yet"
    return f"from {_moment(document.began)} to {_moment(document.ended)}"


def _slower(document: DriftDocument) -> Section | None:
    """Return what takes longer with the items that changed, each with both courses in one chart."""
    told = [one for one in document.slower if one.points]
    if not told:
        return None
    parts: list[Html] = []
    charts = [_joined(index, one) for index, one in enumerate(told)]
    for one, chart in zip(told, charts, strict=True):
        parts += [tag("p", sentence(one.says)), chart.element()]
    return Section(anchor="slower", title="What takes longer for it", parts=parts, charts=charts)


def _joined(index: int, one: SlowerStage) -> Chart:
    size, seconds = _SIZES[one.statistic], f"CPU time of {one.stage}"
    unit, at = _hours_or_minutes([point.at for point in one.points])

    def line(name: str, color: str, values: Sequence[float | None]) -> dict[str, object]:
        data = [
            {"value": [at(point.at), value], "tip": [["at", _moment(point.at)], [name, _times(value)]]}
            for point, value in zip(one.points, values, strict=True)
        ]
        return {
            "type": "line", "name": name, "data": data, "symbolSize": 5, "lineStyle": {"width": 1.5},
            "itemStyle": {"color": color},
        }  # fmt: skip

    series = [
        line(size, _SIZE, [point.size for point in one.points]),
        line(seconds, _VALUE, [point.seconds for point in one.points]),
    ]
    if one.since is not None:
        series[0]["markLine"] = vertical_marks([(at(one.since), "since")])
    where = "" if one.stratum is None else f", {one.stratum}"
    return plot(
        f"slower-{index}",
        f"Size and CPU time, times what is usual{where}",
        f"{size} and {seconds} of each window, as multiples of what is usual",
        series,
        x_axis=axis(f"{unit} before the last window"),
        y_axis=axis(low=0.0),
        upright="times what is usual",
        height=210,
        legend={size: _SIZE, seconds: _VALUE},
    )


def _times(value: float | None) -> str:
    return DASH if value is None else f"{digits(value)} x"


def _hours_or_minutes(moments: Sequence[float]) -> tuple[str, Callable[[float], float]]:
    """Return the unit in which moments are told before the last one, and what makes them so."""
    last = moments[-1]
    unit, divisor = ("hours", 3600.0) if last - moments[0] > 7200 else ("minutes", 60.0)
    return unit, lambda moment: (moment - last) / divisor


def _course(document: DriftDocument) -> Section | None:
    charts = [_chart(index, name, points) for index, (name, points) in enumerate(document.series.items()) if points]
    if not charts:
        return None
    about = tag(
        "p",
        "Each point is the mean of a window, as far as its strata are known to the baseline. 99 of 100 windows lie between "
        "the thin lines while nothing moves; they are apart as far as windows wander by themselves.",
        class_="note",
    )
    return Section(anchor="course", title="Over time", parts=[about, *(one.element() for one in charts)], charts=charts)


def _chart(index: int, name: str, points: Sequence[DriftPoint]) -> Chart:
    unit, at = _hours_or_minutes([point.at for point in points])

    def line(title: str, values: Sequence[float | None], color: str, width: float) -> dict[str, object]:
        data = [
            {"value": [at(point.at), value], "tip": [["at", _moment(point.at)], [title, _shown(value)]]}
            for point, value in zip(points, values, strict=True)
        ]
        return {
            "type": "line", "name": title, "data": data, "showSymbol": title == "mean", "symbolSize": 5,
            "lineStyle": {"width": width}, "itemStyle": {"color": color},
        }  # fmt: skip

    series = [
        line("mean", [one.value for one in points], _VALUE, 1.5),
        line("usual, low", [one.low for one in points], _BAND, 0.7),
        line("usual, high", [one.high for one in points], _BAND, 0.7),
    ]
    # Without its ends the axis would begin at zero.
    known = [value for one in points for value in (one.value, one.low, one.high) if value is not None]
    room = 0.08 * (max(known) - min(known) or abs(max(known)) or 1)
    return plot(
        f"drift-{index}",
        name,
        f"{name} of each window, with the range that is usual",
        series,
        x_axis=axis(f"{unit} before the last window"),
        y_axis=_upright(min(known) - room, max(known) + room),
        upright="mean of a window",
        height=190,
        legend={"mean": _VALUE, "usual range": _BAND},
    )


def _upright(low: float, high: float) -> dict[str, object]:
    """Return an axis whose ends, which are no round numbers, have no label."""
    found = axis(low=low, high=high)
    return found | {"axisLabel": found["axisLabel"] | {"showMinLabel": False, "showMaxLabel": False}}


def _shown(value: float | None) -> str:
    return DASH if value is None else digits(value)


def _scores(document: DriftDocument) -> Section | None:
    if not document.scores:
        return None
    about = tag(
        "p",
        "The evidence is a logarithm; 1 is an alarm. It grows while windows differ in one direction, and falls to nothing "
        "while they do not. A shift of 0.2 standard deviations of items (sd) is small, one of 1 can be seen.",
        class_="note",
    )
    rows = [_row(one) for one in document.scores]
    head = ["statistic", "where", "", "since", "evidence", "windows", "before", "now", "shift"]
    return Section(
        anchor="statistics",
        title="Statistics",
        parts=[about, table(head, rows, text_columns=4, caption="Every statistic")],
    )


def _row(one: Score) -> list[str | None]:
    is_share = one.shift_sd is None
    said, kind = (
        ("alarm", "failed") if one.alarm else ("not sure", "warning") if one.score >= _UNSURE else ("as usual", "ok")
    )
    badge = tag("span", said, class_=f"badge {kind}")
    return [
        one.statistic,
        "all together" if one.stratum is None else one.stratum,
        badge,
        _moment(one.since) if one.since is not None and one.score > 0 else None,
        digits(max(0.0, one.score)),
        count(one.windows) if one.score > 0 else None,
        ratio(one.before) if is_share else digits(one.before),
        ratio(one.now) if is_share else digits(one.now),
        None if one.shift_sd is None else f"{one.shift_sd:+z.2f} sd",
    ]


def _refusals(document: DriftDocument) -> Section | None:
    if not document.refusals:
        return None
    rows: list[list[str | None]] = [[code, count(number)] for code, number in document.refusals.items()]
    return Section(anchor="refusals", title="Not decoded", parts=[table(["code", "items"], rows)])


def _limits(document: DriftDocument) -> Section | None:
    lines = [document.promise.says] if document.promise is not None else []
    lines += [*document.warnings, *([f"{document.lost:,} items could not be counted"] if document.lost else [])]
    parts: list[Html] = [bullets([sentence(line) for line in lines])]
    return Section(anchor="limits", title="What this can show", parts=parts) if lines else None


def _moment(unix_seconds: float) -> str:
    return datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
