"""Charts as data: options of Apache ECharts, made here in plain Python, so that a test can read what will be drawn.

`assets/report.js` only hands them to ECharts. Values are scaled here, and each axis names its one unit. What the pointer shows is
text made here (`tip`, a list of [label, value]) or, for lines and bars, the values with the chart's `unit`. Colours are CSS
variables of `assets/report.css`, so that dark mode and printing change them without a redraw.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.report.markup import Html, plain, tag

#: Series without a colour of their own; Okabe and Ito's palette, told apart by colour-blind people too.
PALETTE = tuple(f"var(--c{index})" for index in range(1, 9))
_DIGITS = 6
_LABEL_WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart."""

    name: str
    """Part of its element's id: letters, digits and hyphens."""
    title: str
    says: str
    """What it shows, for those who do not see it."""
    height: int
    """CSS pixels."""
    unit: str = ""
    """Written behind each value under the pointer."""
    option: Mapping[str, Any]
    """For `echarts.setOption`; shapes that ECharts does not have are named in `renderItem`, see `report.js`."""

    def element(self) -> Html:
        """Return where it will be drawn: empty, and hidden without JavaScript."""
        place = tag("div", id=f"chart-{self.name}", class_="chart", role="img", aria_label=f"{self.title}: {self.says}")
        return tag("figure", tag("figcaption", self.title), place)


def as_json(charts: Iterable[Chart]) -> str:
    """Return the charts as JSON that can stand in a `<script>` element: it holds no `<`, `>` or `&`."""
    listed = [
        {"id": f"chart-{chart.name}", "height": chart.height, "unit": chart.unit, "option": _clean(chart.option)}
        for chart in charts
    ]
    text = json.dumps(listed, allow_nan=False, separators=(",", ":"))  # ASCII: no separator lines either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def horizontal_bars(
    name: str,
    title: str,
    says: str,
    categories: Sequence[str],
    series: Mapping[str, tuple[str, Sequence[float | None]]],
    unit: str,
    *,
    axis: str,
    stacked: bool = False,
) -> Chart:
    """Return bars that grow to the right, the first category on top.

    Args:
        name: See `Chart`, as are title and says.
        title: See `Chart`.
        says: See `Chart`.
        categories: One row each.
        series: {name: (colour, one value per category)}.
        unit: Of the values.
        axis: Name of the axis, with the unit.
        stacked: Whether the series of a row stand one behind the other.
    """
    drawn = [
        {
            "type": "bar",
            "name": series_name,
            "data": list(values),
            "stack": "all" if stacked else None,
            "itemStyle": {"color": color},
            "barMaxWidth": 18,
            "emphasis": {"disabled": True},
        }
        for series_name, (color, values) in series.items()
    ]
    rows_each = 1 if stacked else max(1, len(series))
    height = 34 + len(categories) * (14 + 18 * rows_each) + 34
    return Chart(
        name=name,
        title=title,
        says=says,
        unit=unit,
        height=height + (_legend_height(series) if len(series) > 1 else 0),
        option={
            "grid": _grid(bottom=26, top=_legend_height(series) if len(series) > 1 else 4),
            "legend": _legend(series) if len(series) > 1 else None,
            "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
            "xAxis": _value_axis(axis, middle=True),
            "yAxis": category_axis(categories),
            "series": drawn,
        },
    )


def over_time(
    name: str,
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float | None]]],
    unit: str,
    *,
    shaded: Sequence[tuple[float, float, str]] = (),
    maximum: float | None = None,
) -> Chart:
    """Return lines over the seconds of the run.

    Args:
        name: See `Chart`, as is title.
        title: See `Chart`.
        lines: {name: points (seconds, value)}; a gap where the value is None.
        unit: Of the values.
        shaded: (from, to, label) of stretches that do not count, such as warm-up.
        maximum: End of the value axis; as the values need if None.
    """
    drawn: list[dict[str, Any]] = [
        {
            "type": "line",
            "name": line,
            "data": [list(point) for point in points],
            "showSymbol": len(points) == 1,
            "symbolSize": 5,
            "lineStyle": {"width": 1.5},
            "itemStyle": {"color": PALETTE[index % len(PALETTE)]},
            "emphasis": {"disabled": True},
        }
        for index, (line, points) in enumerate(lines.items())
    ]
    if drawn and shaded:
        drawn[0]["markArea"] = _mark_area(shaded)
    legend = len(lines) > 1
    return Chart(
        name=name,
        title=title,
        says=f"{unit or 'value'} over the seconds of the run",
        unit=unit,
        height=210 + (_legend_height(lines) if legend else 0),
        option={
            "grid": _grid(bottom=24, top=(_legend_height(lines) if legend else 0) + 24),
            "legend": _legend(lines) if legend else None,
            "tooltip": {"trigger": "axis", "axisPointer": {"type": "line"}, "header": "s"},
            "xAxis": _value_axis("seconds", middle=True) | {"scale": True, "splitLine": {"show": False}},
            "yAxis": _value_axis(unit) | {"max": maximum},
            "series": drawn,
        },
    )


def plot(
    name: str,
    title: str,
    says: str,
    series: Sequence[Mapping[str, Any]],
    *,
    x_axis: Mapping[str, Any],
    y_axis: Mapping[str, Any],
    height: int = 280,
    unit: str = "",
    legend: Sequence[str] = (),
) -> Chart:
    """Return a chart of any series; the pointer shows each mark's own `tip`, or the values if `unit` is given."""
    top = _legend_height(legend) if legend else 8
    if y_axis.get("type") != "category":
        top += 20  # the axis' name stands there
    return Chart(
        name=name,
        title=title,
        says=says,
        unit=unit,
        height=height + (_legend_height(legend) if legend else 0),
        option={
            "grid": _grid(bottom=26, top=top),
            "legend": _legend(legend) if legend else None,
            "tooltip": {"trigger": "item"},
            "xAxis": dict(x_axis),
            "yAxis": dict(y_axis),
            "series": [{"emphasis": {"disabled": True}, **one} for one in series],
        },
    )


def axis(
    name: str, *, kind: Literal["value", "log"] = "value", middle: bool = False, low: float | None = None
) -> dict[str, Any]:
    """Return an axis of numbers; `middle` puts its name under it (x) instead of at its end (y)."""
    return _value_axis(name, middle=middle) | {"type": kind, "min": low}


def category_axis(categories: Sequence[str]) -> dict[str, Any]:
    """Return an axis of names, the first on top; long names are cut."""
    return {
        "type": "category",
        "data": list(categories),
        "inverse": True,
        "axisTick": {"show": False},
        "axisLine": {"lineStyle": {"color": "var(--line)"}},
        "axisLabel": {"color": "var(--text)", "width": _LABEL_WIDTH, "overflow": "truncate", "interval": 0},
    }


def vertical_marks(marks: Iterable[tuple[float, str]]) -> dict[str, Any]:
    """Return lines across the chart at values of the x axis, each with its label."""
    return {
        "symbol": "none",
        "silent": True,
        "animation": False,
        "lineStyle": {"color": "var(--text)", "type": [4, 3], "width": 1},
        "data": [
            {"xAxis": value, "label": {"formatter": label, "color": "var(--text)", "position": "end"}}
            for value, label in marks
        ],
    }


def _mark_area(stretches: Sequence[tuple[float, float, str]]) -> dict[str, Any]:
    return {
        "silent": True,
        "itemStyle": {"color": "var(--shade)"},
        "label": {"color": "var(--muted)", "position": "insideTop", "fontSize": 11},
        "data": [[{"xAxis": start, "name": label}, {"xAxis": end}] for start, end, label in stretches],
    }


def _grid(*, top: int, bottom: int) -> dict[str, Any]:
    return {"left": 4, "right": 16, "top": top, "bottom": bottom, "outerBoundsMode": "same"}


def _legend(names: Iterable[str]) -> dict[str, Any]:
    return {
        "data": list(names),
        "top": 0,
        "left": 0,
        "itemWidth": 12,
        "itemHeight": 9,
        "itemGap": 12,
        "icon": "rect",
        "textStyle": {"color": "var(--text)", "width": 190, "overflow": "truncate"},
        "inactiveColor": "var(--line)",
    }


def _legend_height(names: Iterable[str]) -> int:
    """Return the room a legend may take on a narrow screen: about 40 characters a line."""
    characters = sum(min(len(name), 28) + 5 for name in names)
    return 10 + 20 * math.ceil(characters / 46)


def _value_axis(name: str, *, middle: bool = False) -> dict[str, Any]:
    placed = {"nameLocation": "middle", "nameGap": 24} if middle else {"nameLocation": "end", "nameGap": 8}
    return {
        "type": "value",
        "name": name,
        **placed,
        "nameTextStyle": {"color": "var(--muted)", "align": "center" if middle else "left"},
        "axisLabel": {"color": "var(--muted)", "hideOverlap": True},
        "axisLine": {"show": middle, "lineStyle": {"color": "var(--line)"}},
        "axisTick": {"show": False},
        "splitLine": {"lineStyle": {"color": "var(--grid)"}},
        "splitNumber": 4,
    }


def _clean(value: Any) -> Any:
    """Return options without None, with text that can be shown, and numbers cut to what a screen can tell apart."""
    if isinstance(value, Mapping):
        return {plain(key): _clean(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_clean(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return plain(value) if isinstance(value, str) else value
