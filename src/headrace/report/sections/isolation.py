"""Stages alone, and the pipeline with one part replaced."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.charts import PALETTE, Chart, axis, category_axis, plot, vertical_marks
from headrace.report.markup import DASH, Html, bullets, fold, note, table, tag
from headrace.report.numbers import count, data, digits, rate, seconds
from headrace.report.section import Section
from headrace.runs.formats.isolation import CurvePoint, StageAlone, Variation
from headrace.runs.formats.profile import ProfileDocument


def isolation(document: ProfileDocument) -> Section | None:
    """Return each stage's concurrency curve with its knee, and the variations of the pipeline."""
    told = document.isolation
    if told is None:
        return None
    curves = [_curve(index, stage) for index, stage in enumerate(told.stages) if stage.curve]
    measured = [variation for variation in told.variations if variation.throughput is not None]
    charts = [*([_variations(measured)] if measured else []), *curves]
    return Section(
        anchor="isolation",
        title="Stages alone",
        parts=[
            note(f"Each stage alone, with the inputs of {told.num_items:,} items in memory; then the pipeline with one part "
                 "replaced by something that costs nothing."),
            *([bullets(told.says)] if told.says else []),
            table(["", "measured"], [("device fed from memory", rate(told.device_ceiling)),
                                     ("headroom of perfect feeding", data(told.feeding_headroom, "times"))]),
            *(chart.element() for chart in charts[: len(charts) - len(curves)]),
            *([_variation_table(told.variations)] if told.variations else []),
            tag("div", *(chart.element() for chart in curves), class_="grid"),
            _stage_table(told.stages),
            fold("Concurrency curves as a table", _curve_table(told.stages)),
        ],
        charts=charts,
    )  # fmt: skip


def _curve(index: int, stage: StageAlone) -> Chart:
    batch_sizes = list(dict.fromkeys(point.batch_size for point in stage.curve))
    lines = [
        {
            "type": "line",
            "name": _batch(batch_size),
            "symbol": "circle",
            "symbolSize": 7,
            "itemStyle": {"color": _color(line)},
            "data": [_mark(point) for point in stage.curve if point.batch_size == batch_size],
        }
        for line, batch_size in enumerate(batch_sizes)
    ]
    spread = {
        "type": "custom", "renderItem": "whisker", "silent": True, "itemStyle": {"color": "var(--muted)"},
        "encode": {"x": 0, "y": [1, 2]},
        "data": [[point.workers, point.throughput_low, point.throughput_high] for point in stage.curve],
    }  # fmt: skip
    if stage.knee_workers is not None:
        lines[0]["markLine"] = vertical_marks([(stage.knee_workers, f"knee {stage.knee_workers}")])
    return plot(
        f"curve-{index}",
        f"{stage.name} alone",
        "items per second by number of workers, with the range over repetitions",
        [*lines, spread],
        x_axis=axis("workers", low=0) | {"minInterval": 1},
        y_axis=axis(low=0),
        upright="items/s",
        height=220,
        legend={_batch(batch_size): _color(line) for line, batch_size in enumerate(batch_sizes)},
    )


def _mark(point: CurvePoint) -> dict[str, object]:
    tip = [["workers", f"{point.workers}"], ["throughput", f"{digits(point.throughput)}/s"],
           ["range", f"{digits(point.throughput_low)} to {digits(point.throughput_high)}/s"]]  # fmt: skip
    return {"value": [point.workers, point.throughput], "tip": tip}


def _variations(measured: Sequence[Variation]) -> Chart:
    bars = {
        "type": "bar", "barMaxWidth": 18, "itemStyle": {"color": "var(--service)"},
        "data": [{"value": one.throughput, "tip": [[_name(one), f"{digits(one.throughput or 0.0)}/s"]]} for one in measured],
    }  # fmt: skip
    spread = {
        "type": "custom", "renderItem": "whisker-x", "silent": True, "itemStyle": {"color": "var(--text)"},
        "encode": {"x": [1, 2], "y": 0},
        "data": [[row, one.throughput_low, one.throughput_high] for row, one in enumerate(measured)
                 if one.throughput_low is not None and one.throughput_high is not None],
    }  # fmt: skip
    return plot(
        "variations",
        "The pipeline with one part replaced",
        "items per second, with the range over repetitions",
        [bars, spread],
        x_axis=axis("items/s", low=0),
        y_axis=category_axis([_name(one) for one in measured]),
        height=48 + 32 * len(measured),
    )


def _name(variation: Variation) -> str:
    return variation.name.replace("_", " ")


def _variation_table(variations: Sequence[Variation]) -> Html:
    rows = [
        [_name(one), one.says, rate(one.throughput), rate(one.throughput_low), rate(one.throughput_high),
         data(one.ratio, "times")]
        for one in variations
    ]  # fmt: skip
    return table(["variation", "it says", "throughput", "lowest", "highest", "to as is"], rows, text_columns=2)


def _stage_table(stages: Sequence[StageAlone]) -> Html:
    rows = [
        [stage.name, stage.kind, stage.executor, stage.says or DASH, seconds(stage.cpu_demand), seconds(stage.wait_demand),
         count(stage.knee_workers), rate(stage.best_throughput)]
        for stage in stages
    ]  # fmt: skip
    head = ["stage", "kind", "executor", "it says", "CPU demand", "waits on the outside", "knee at workers", "best"]
    return table(head, rows, text_columns=4)


def _curve_table(stages: Sequence[StageAlone]) -> Html:
    rows = [
        [stage.name, count(point.workers), count(point.batch_size), rate(point.throughput), rate(point.throughput_low),
         rate(point.throughput_high), seconds(point.service), seconds(point.cpu), seconds(point.run_delay),
         seconds(point.blocked), count(point.num_items)]
        for stage in stages for point in stage.curve
    ]  # fmt: skip
    head = [
        "stage",
        "workers",
        "batch",
        "throughput",
        "lowest",
        "highest",
        "service",
        "CPU",
        "run delay",
        "blocked",
        "items",
    ]
    return table(head, rows)


def _batch(size: int | None) -> str:
    return "throughput" if size is None else f"batch of {size}"


def _color(line: int) -> str:
    return PALETTE[line % len(PALETTE)]
