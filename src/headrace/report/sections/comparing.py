"""Before and after: what a comparison found, for the whole and stage by stage."""

from __future__ import annotations

from headrace.report.charts import Chart, axis, horizontal_bars, plot
from headrace.report.markup import Html, bullets, fold, note, side_by_side, table, tag
from headrace.report.numbers import count, data, digits, seconds, show_value, time_scale
from headrace.report.section import Section
from headrace.runs.formats.comparison import ComparisonDocument, Side
from headrace.runs.formats.profile import ProfileDocument

_WORDS = {
    "better": "B is better",
    "worse": "B is worse",
    "no_difference": "no difference",
    "underpowered": "cannot be told yet",
}
_COLORS = ("var(--before)", "var(--cpu)")
_CLASSES = {"better": "ok", "worse": "failed", "no_difference": "plain", "underpowered": "warning"}


def comparing(comparison: ComparisonDocument | None, document: ProfileDocument) -> Section | None:
    """Return the verdict, the bars of A and B, and the values of each block."""
    if comparison is None:
        return None
    stages = {stage.name for stage in document.stages}
    is_other = all(side.stages and not stages >= set(side.stages) for side in (comparison.a, comparison.b))
    other = (
        f"This compares other pipelines than that of the run on this page: {comparison.a.name} and {comparison.b.name}."
    )
    charts = [chart for chart in (_stages(comparison), _blocks(comparison)) if chart]
    elements = [chart.element() for chart in charts]
    return Section(
        anchor="comparison",
        title="Before and after",
        parts=[
            note(tag("span", _WORDS[comparison.verdict], class_=f"badge {_CLASSES[comparison.verdict]}"),
                 tag("span", " regression beyond the budget", class_="badge failed") if comparison.is_regression else None,
                 f" {_metric(comparison)}: B over A ", *_ratio(comparison)),
            *([note(tag("span", "another pipeline", class_="badge warning"), " ", other)] if is_other else []),
            bullets([*comparison.says, f"Differences below {show_value(comparison.margin, 'ratio')} count as none.",
                     *comparison.warnings]),
            *elements,
            side_by_side(_sides(comparison), *_stage_table(comparison)),
            fold("Values of each block", _block_table(comparison)),
        ],
        charts=charts,
    )  # fmt: skip


def _ratio(comparison: ComparisonDocument) -> list[str | None]:
    if comparison.ratio is None:
        return ["could not be computed."]
    parts: list[str | None] = [tag("b", data(comparison.ratio, ""))]
    if comparison.ratio_low is not None and comparison.ratio_high is not None:
        parts += [" (95 % interval ", data(comparison.ratio_low, ""), " to ", data(comparison.ratio_high, ""), ")"]
    return [*parts, f", {'higher' if comparison.higher_is_better else 'lower'} is better."]


def _names(comparison: ComparisonDocument) -> tuple[str, str]:
    return f"A: {comparison.a.name}", f"B: {comparison.b.name}"


def _stage_names(comparison: ComparisonDocument) -> list[str]:
    return list(dict.fromkeys([*comparison.a.stages, *comparison.b.stages]))


def _stages(comparison: ComparisonDocument) -> Chart | None:
    stages = _stage_names(comparison)
    if not stages:
        return None
    a, b = comparison.a.stages, comparison.b.stages
    factor, unit = time_scale([*a.values(), *b.values()])
    bars = {
        name: (color, [side[stage] * factor if stage in side else None for stage in stages])
        for name, color, side in zip(_names(comparison), _COLORS, (a, b), strict=True)
    }
    return horizontal_bars(
        "before-after", "Service per item, before and after", f"mean {unit} per item of each stage", stages, bars, unit,
        axis_name=f"{unit} per item",
    )  # fmt: skip


def _blocks(comparison: ComparisonDocument) -> Chart | None:
    sides = (comparison.a, comparison.b)
    if not any(side.values for side in sides):
        return None
    name = _metric(comparison)
    series = [
        {
            "type": "line", "name": label, "symbol": symbol, "symbolSize": 8, "itemStyle": {"color": color},
            "lineStyle": {"width": 1},
            "data": [{"value": [pair, value], "tip": [[label, f"{digits(value)} {comparison.unit}"], ["pair", str(pair)]]}
                     for pair, value in enumerate(side.values, start=1)],
        }
        for label, side, color, symbol in zip(
            _names(comparison), sides, _COLORS, ("circle", "rect"), strict=True)
    ]  # fmt: skip
    return plot(
        "blocks",
        f"{name}, block by block",
        f"{name} of each pair of blocks, A and B",
        series,
        x_axis=axis("pair") | {"minInterval": 1, "scale": True},
        y_axis=axis() | {"scale": True},
        upright=comparison.unit,
        legend=dict(zip(_names(comparison), _COLORS, strict=True)),
    )


def _metric(comparison: ComparisonDocument) -> str:
    return comparison.metric.replace("_", " ")


def _plans(side: Side) -> Html:
    return tag("code", ", ".join(side.plan_ids))


def _sides(comparison: ComparisonDocument) -> Html:
    rows = [
        [
            label,
            side.pipeline,
            tag("code", ", ".join(side.plan_ids)),
            data(side.median, comparison.unit),
            count(len(side.values)),
        ]
        for label, side in zip(_names(comparison), (comparison.a, comparison.b), strict=True)
    ]
    return table(["", "pipeline", "Plan", f"median {_metric(comparison)}", "blocks"], rows, text_columns=3)


def _stage_table(comparison: ComparisonDocument) -> list[Html]:
    a, b = comparison.a.stages, comparison.b.stages
    rows = [
        [stage, seconds(a.get(stage)), seconds(b.get(stage)),
         data(b[stage] / a[stage], "") if stage in b and a.get(stage) else None]
        for stage in _stage_names(comparison)
    ]  # fmt: skip
    return [table(["stage", "A per item", "B per item", "B over A"], rows)] if rows else []


def _block_table(comparison: ComparisonDocument) -> Html:
    pairs = max(len(comparison.a.values), len(comparison.b.values))
    rows = [
        [str(index + 1), *(data(side.values[index], comparison.unit) if index < len(side.values) else None
                           for side in (comparison.a, comparison.b))]
        for index in range(pairs)
    ]  # fmt: skip
    return table(["pair", "A", "B"], rows)
