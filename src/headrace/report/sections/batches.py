"""How full batches were, why they were launched, and what a batch of each size costs."""

from __future__ import annotations

from headrace.report.charts import PALETTE, Chart, axis, horizontal_bars, plot
from headrace.report.markup import Html, note, side_by_side, table, tag
from headrace.report.numbers import count, data, digits, ratio, seconds, time_scale
from headrace.report.section import Section
from headrace.runs.formats.profile import Batches, ProfileDocument

#: What each reason means; see `design.md`.
REASONS = {
    "full": "the batch had its largest size",
    "idle": "the device was idle and took what was there",
    "max_wait": "the oldest item had waited long enough",
    "shape": "the next item had another shape",
    "drain": "the run was ending",
    "split": "part of a failed batch, tried again",
}


def batches(document: ProfileDocument) -> Section | None:
    """Return batch sizes, release reasons and cost curves of the stages with batches."""
    found = [(stage.name, stage.batches) for stage in document.stages if stage.batches is not None]
    if not found:
        return None
    parts: list[Html] = []
    charts: list[Chart] = []
    for index, (stage, told) in enumerate(found):
        made = _charts(index, stage, told)
        charts += made
        heading = [tag("h3", stage)] if len(found) > 1 else []
        parts += [*heading, tag("div", *(chart.element() for chart in made), class_="grid"), *_tables(told)]
    return Section(anchor="batches", title="Batches", parts=parts, charts=charts)


def _charts(index: int, stage: str, told: Batches) -> list[Chart]:
    sizes = sorted(told.sizes)
    made = [
        horizontal_bars(
            f"batch-sizes-{index}",
            f"Batch sizes of {stage}",
            "batches of each size",
            [f"{size} item{'s' if size != 1 else ''}" for size in sizes],
            {"batches": ("var(--service)", [told.sizes[size] for size in sizes])},
            "batches",
            axis_name="batches",
        ),
        horizontal_bars(
            f"release-reasons-{index}",
            f"Why batches of {stage} were launched",
            "batches by reason",
            list(told.release_reasons),
            {"batches": ("var(--cpu)", list(told.release_reasons.values()))},
            "batches",
            axis_name="batches",
        ),
    ]
    made = [chart for chart, rows in zip(made, (sizes, told.release_reasons), strict=True) if rows]
    return made + ([_cost_curve(index, stage, told.cost_curve)] if len(told.cost_curve) > 1 else [])


def _cost_curve(index: int, stage: str, curve: dict[int, float]) -> Chart:
    factor, unit = time_scale(curve.values())
    points = [
        {"value": [size, cost * factor], "tip": [["batch size", str(size)], ["one call", f"{digits(cost * factor)} {unit}"],
                                                 ["per item", f"{digits(cost * factor / size)} {unit}"]]}
        for size, cost in sorted(curve.items())
        if size > 0
    ]  # fmt: skip
    return plot(
        f"cost-curve-{index}",
        f"What a batch of {stage} costs",
        f"{unit} of one call by batch size, measured at warm-up",
        [{"type": "line", "data": points, "symbolSize": 7, "symbol": "circle", "itemStyle": {"color": PALETTE[0]}}],
        x_axis=axis("batch size", low=0),
        y_axis=axis(low=0),
        upright=unit,
        height=220,
    )


def _tables(told: Batches) -> list[Html]:
    def share(num: int) -> Html | None:
        return ratio(num / told.num_batches) if told.num_batches else None

    sizes = [[data(size, "items"), count(num), share(num)] for size, num in sorted(told.sizes.items())]
    reasons = [
        [reason, REASONS.get(reason, ""), count(num), share(num)] for reason, num in told.release_reasons.items()
    ]
    costs = [[data(size, "items"), seconds(cost), seconds(cost / size if size else None)]
             for size, cost in sorted(told.cost_curve.items())]  # fmt: skip
    tables = [
        table(["batch size", "batches", "share"], sizes, text_columns=0),
        table(["launched because", "that is", "batches", "share"], reasons, text_columns=2),
        table(["batch size", "one call", "per item"], costs, text_columns=0),
    ]
    summary = note(f"{told.num_batches:,} batches, ", data(told.mean_size, "items"), " in each on average.")
    return [summary, side_by_side(*(made for made, rows in zip(tables, (sizes, reasons, costs), strict=True) if rows))]
