"""Charts as data: options of Apache ECharts, made here in plain Python, so that a test can read what will be drawn.

`assets/report.js` only hands them to ECharts. Values are scaled here, and each axis has one unit. What the pointer shows is
text made here (`tip`, a list of [label, value]) or, for lines and bars, the values with the chart's `unit`. Colours are CSS
variables of `assets/report.css`, so that dark mode and printing change them without a redraw.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.report.markup import Html, plain, tag

#: Series without a colour of their own; Okabe and Ito's palette, told apart by colour-blind people too.
PALETTE = tuple(f"var(--c{index})" for index in range(1, 9))
_DIGITS = 6
_LABEL_WIDTH = 150
#: Room for the labels is found by ECharts; top and right are for marks that stand above and for half a label.
_GRID = {"left": 2, "right": 18, "top": 18, "bottom": 2, "outerBoundsMode": "same"}


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
    upright: str = ""
    """What the upright axis measures, with its unit; stands beside the title."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """{name: colour}; markup and not ECharts' own, so that it wraps on any screen and on paper."""
    option: Mapping[str, Any]
    """For `echarts.setOption`; shapes that ECharts does not have are named in `renderItem`, see `report.js`."""

    def element(self) -> Html:
        """Return where it will be drawn: empty, and hidden without JavaScript."""
        caption = tag("figcaption", self.title, tag("small", f" {self.upright}") if self.upright else None)
        keys = [tag("li", _swatch(color), name) for name, color in self.legend.items()]
        place = tag("div", id=f"chart-{self.name}", class_="chart", role="img", aria_label=f"{self.title}: {self.says}")
        return tag("figure", caption, tag("ul", *keys, class_="legend") if len(keys) > 1 else None, place)


def shorten(name: str, most: int = 20) -> str:
    """Return a name cut at its beginning: names of layers and files differ at their ends."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _swatch(color: str) -> Html:
    # An attribute of SVG, since the page's policy refuses `style`.
    square = tag("rect", width="10", height="10", rx="2", fill=color)
    return tag("svg", square, width="10", height="10", aria_hidden="true")


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
    axis_name: str,
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
        axis_name: What the bars measure, with the unit.
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
    row_height = 26 if stacked else 10 + 18 * max(1, len(series))
    return Chart(
        name=name,
        title=title,
        says=says,
        unit=unit,
        height=48 + len(categories) * row_height,
        legend={series_name: color for series_name, (color, _) in series.items()},
        option={
            "grid": _GRID,
            "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
            "xAxis": axis(axis_name),
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
    until: float,
    shaded: Sequence[tuple[float, float]] = (),
    maximum: float | None = None,
) -> Chart:
    """Return lines over the seconds of the run.

    Args:
        name: See `Chart`, as is title.
        title: See `Chart`.
        lines: {name: points (seconds, value)}; a gap where the value is None.
        unit: Of the values.
        until: End of the time axis, seconds.
        shaded: (from, to) of stretches that do not count, such as warm-up.
        maximum: End of the value axis; as the values need if None.
    """
    colors = {line: PALETTE[index % len(PALETTE)] for index, line in enumerate(lines)}
    drawn: list[dict[str, Any]] = [
        {
            "type": "line",
            "name": line,
            "data": [list(point) for point in points],
            "showSymbol": len(points) == 1,
            "symbolSize": 5,
            "lineStyle": {"width": 1.5},
            "itemStyle": {"color": colors[line]},
            "emphasis": {"disabled": True},
        }
        for line, points in lines.items()
    ]
    if drawn and shaded:
        drawn[0]["markArea"] = _mark_area(shaded)
    return Chart(
        name=name,
        title=title,
        says=f"{unit or 'value'} over the seconds of the run",
        unit=unit,
        upright=unit,
        height=190,
        legend=colors,
        option={
            "grid": _GRID,
            "tooltip": {"trigger": "axis", "axisPointer": {"type": "line"}, "header": "s"},
            "xAxis": axis("seconds", low=0, high=until) | {"splitLine": {"show": False}},
            "yAxis": axis(high=maximum) | {"interval": None if maximum is None else maximum / 4},
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
    upright: str = "",
    height: int = 240,
    legend: Mapping[str, str] | None = None,
) -> Chart:
    """Return a chart of any series; the pointer shows each mark's own `tip`; `upright` as in `Chart`."""
    return Chart(
        name=name,
        title=title,
        says=says,
        height=height,
        upright=upright,
        legend=legend or {},
        option={
            "grid": _GRID,
            "tooltip": {"trigger": "item"},
            "xAxis": dict(x_axis),
            "yAxis": dict(y_axis),
            "series": [{"emphasis": {"disabled": True}, **one} for one in series],
        },
    )


def axis(
    name: str = "",
    *,
    kind: Literal["value", "log"] = "value",
    low: float | None = None,
    high: float | None = None,
) -> dict[str, Any]:
    """Return an axis of numbers.

    Args:
        name: What it measures, with the unit; empty for an upright axis, of which the chart's title tells it.
        kind: Linear or logarithmic.
        low: Where it begins; as the values need if None.
        high: Where it ends; as the values need if None.
    """
    named = {"name": name, "nameLocation": "middle", "nameGap": 24, "nameTextStyle": {"color": "var(--muted)"}}
    # An end that is given is seldom a round number: no label there.
    shown = {
        "showMinLabel": False if name and low and kind == "value" else None,
        "showMaxLabel": False if name and high else None,
    }
    labels = {"color": "var(--muted)", "hideOverlap": True, **shown}
    return {
        "type": kind,
        **(named if name else {}),
        "min": low,
        "max": high,
        "axisLabel": labels,
        "axisLine": {"show": bool(name), "lineStyle": {"color": "var(--line)"}},
        "axisTick": {"show": False},
        "splitLine": {"lineStyle": {"color": "var(--grid)"}},
        "splitNumber": 4,
    }


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


def vertical_marks(marks: Iterable[tuple[float, str]], *, is_inverse: bool = False) -> dict[str, Any]:
    """Return lines across the chart at values of the x axis, each with its label on top.

    Args:
        marks: (value, label) of each.
        is_inverse: The upright axis begins on top, as that of `category_axis` does.
    """
    return {
        "symbol": "none",
        "silent": True,
        "animation": False,
        "lineStyle": {"color": "var(--text)", "type": [4, 3], "width": 1},
        "data": [
            {
                "xAxis": value,
                "label": {"formatter": label, "color": "var(--text)", "position": "start" if is_inverse else "end"},
            }
            for value, label in marks
        ],
    }


def _mark_area(stretches: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {
        "silent": True,
        "itemStyle": {"color": "var(--shade)"},
        "data": [[{"xAxis": start}, {"xAxis": end}] for start, end in stretches],
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
