"""Inside the model: which layers take the time, and how near they come to what the machine can do."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from headrace.report.charts import Chart, axis, horizontal_bars, plot, shorten
from headrace.report.markup import DASH, Html, bullets, fold, note, table, tag
from headrace.report.numbers import count, data, digits, ratio, seconds, show_value, size, time_scale
from headrace.report.section import Section
from headrace.runs.formats.layers import Ceilings, Layer, LayersDocument
from headrace.runs.formats.profile import ProfileDocument

_BARS = 15
#: A page with thousands of rows is slow on a phone; `layers.json` has them all.
_MOST_ROWS = 300
_MOST_MARKS = 500
_COLORS = {
    "compute": "var(--cpu)",
    "memory": "var(--run-delay)",
    "overhead": "var(--lock)",
    "unknown": "var(--unknown)",
}


def layers(document: ProfileDocument) -> Section | None:
    """Return the layers that take longest, the table of all, and the roofline."""
    told = document.layers
    if told is None or not told.layers:
        return None
    slowest = sorted(told.layers, key=lambda layer: -layer.seconds)
    charts = [_bars(slowest[:_BARS])]
    roofline = _roofline(slowest, told.ceilings) if told.ceilings else None
    parts = [
        note(*_says(told)),
        *([bullets(told.warnings)] if told.warnings else []),
        charts[0].element(),
        _operators(told),
        fold(_rows_title(slowest), _table(slowest[:_MOST_ROWS])),
    ]
    if roofline and told.ceilings:
        charts.append(roofline)
        parts += [roofline.element(), _ceilings(told.ceilings)]
    return Section(anchor="layers", title="Inside the model", parts=parts, charts=charts)


def _says(told: LayersDocument) -> list[str | None]:
    threads = f"{told.threads} thread{'s' if told.threads != 1 else ''}"
    work = [" In all ", data(told.total_flops, "flops"), " per call."] if told.total_flops else []
    return [
        tag("code", told.artifact),
        f" on {told.engine}, batch of {told.batch_size}, {threads}: one call takes ",
        seconds(told.latency_seconds),
        f", the median without profiling. Profiling made it {told.inflation:.2f} times as long; ",
        f"the times below are scaled back, and are means of {told.num_calls:,} calls.",
        *work,
    ]


def _bars(slowest: list[Layer]) -> Chart:
    factor, unit = time_scale(layer.seconds for layer in slowest)
    bounds = [bound for bound in _COLORS if any(layer.bound == bound for layer in slowest)]
    return horizontal_bars(
        "layers",
        "Layers that take longest, by what limits them",
        f"{unit} per call",
        [shorten(layer.name) for layer in slowest],
        {
            bound: (_COLORS[bound], [layer.seconds * factor if layer.bound == bound else None for layer in slowest])
            for bound in bounds
        },
        unit,
        axis_name=f"{unit} per call",
        stacked=True,
    )


def _operators(told: LayersDocument) -> Html:
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for layer in told.layers:
        total = totals[layer.operator]
        for index, value in enumerate((1, layer.seconds, layer.share)):
            total[index] += value
    ordered = sorted(totals.items(), key=lambda pair: -pair[1][1])
    rows = [
        [operator, count(number), seconds(total), ratio(share)]
        for operator, (number, total, share) in ordered[:_MOST_ROWS]
    ]
    return table(["operator", "layers", "per call", "share"], rows)


def _rows_title(slowest: list[Layer]) -> str:
    if len(slowest) <= _MOST_ROWS:
        return f"All {len(slowest)} layers"
    rest = sum(layer.seconds for layer in slowest[_MOST_ROWS:])
    return f"The slowest {_MOST_ROWS} of {len(slowest):,} layers (the others take {show_value(rest, 'seconds')} in all)"


def _table(shown: list[Layer]) -> Html:
    head = [
        "layer", "operator", "provider", "limited by", "output", "per call", "share", "as profiled", "work", "traffic",
        "FLOP/byte", "speed", "of the ceiling",
    ]  # fmt: skip
    rows = [
        [
            layer.name,
            layer.operator,
            layer.provider,
            layer.bound,
            f"{layer.precision} {layer.output_shape}".strip(),
            seconds(layer.seconds),
            ratio(layer.share),
            seconds(layer.raw_seconds),
            data(layer.flops, "flops"),
            size(layer.num_bytes),
            data(layer.intensity, ""),
            data(layer.flops_per_second, "flops/s"),
            ratio(layer.of_ceiling),
        ]
        for layer in shown
    ]
    return table(head, rows, text_columns=5)


def _roofline(slowest: list[Layer], ceilings: Ceilings) -> Chart | None:
    """Return layers under the roof of this machine (Williams, Waterman and Patterson, 2009); None without counted layers."""
    marks = [_mark(layer) for layer in slowest[:_MOST_MARKS] if layer.intensity and layer.flops_per_second]
    peak, bandwidth = ceilings.flops_per_second, ceilings.bytes_per_second
    if not marks or peak <= 0 or bandwidth <= 0:
        return None
    ridge = peak / bandwidth
    intensities = [mark["value"][0] for _, mark in marks]
    low, high = _decade(min(*intensities, ridge), down=True), _decade(max(*intensities, ridge), down=False)
    speeds = [mark["value"][1] for _, mark in marks]
    roof = [[low, low * bandwidth / 1e9], [ridge, peak / 1e9], [high, peak / 1e9]]
    series: list[dict[str, Any]] = [
        {
            "type": "line", "name": "ceiling", "data": roof, "showSymbol": False, "silent": True,
            "lineStyle": {"width": 2, "color": "var(--text)"}, "itemStyle": {"color": "var(--text)"},
        }
    ]  # fmt: skip
    bounds = [bound for bound in _COLORS if any(found == bound for found, _ in marks)]
    series += [
        {
            "type": "scatter", "name": bound, "itemStyle": {"color": _COLORS[bound], "opacity": 0.8},
            "data": [mark for found, mark in marks if found == bound],
        }
        for bound in bounds
    ]  # fmt: skip
    return plot(
        "roofline",
        "Roofline: layers under this machine's ceilings; the larger, the more time",
        "speed of each layer by operations per byte, both logarithmic",
        series,
        x_axis=axis("FLOP per byte", kind="log", low=low, high=high),
        y_axis=axis(kind="log", low=_decade(min(*speeds, roof[0][1]), down=True)),
        upright="GFLOP/s",
        height=340,
        legend={"ceiling": "var(--text)", **{bound: _COLORS[bound] for bound in bounds}},
    )


def _mark(layer: Layer) -> tuple[str, dict[str, Any]]:
    speed = (layer.flops_per_second or 0.0) / 1e9
    return layer.bound, {
        "value": [layer.intensity, speed],
        "symbolSize": 6 + 34 * math.sqrt(max(0.0, min(1.0, layer.share))),
        "tip": [["layer", layer.name], ["operator", layer.operator], ["per call", show_value(layer.seconds, "seconds") or DASH],
                ["share", show_value(layer.share, "ratio") or DASH], ["speed", f"{digits(speed)} GFLOP/s"],
                ["of the ceiling", show_value(layer.of_ceiling, "ratio") or DASH]],
    }  # fmt: skip


def _decade(value: float, *, down: bool) -> float:
    power = math.log10(value)
    return float(10.0 ** (math.floor(power) if down else math.ceil(power)))


def _ceilings(ceilings: Ceilings) -> Html:
    rows = [
        ["arithmetic", data(ceilings.flops_per_second, "flops/s")],
        ["memory", data(ceilings.bytes_per_second, "bytes/s")],
        [
            "ridge",
            data(ceilings.flops_per_second / ceilings.bytes_per_second if ceilings.bytes_per_second else None, ""),
        ],
        ["threads", count(ceilings.threads)],
    ]
    return tag("div", table(["ceiling", "measured"], rows), note(ceilings.method))
