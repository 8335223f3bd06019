"""What a variant is worth in each part of the golden set, beside the model as given."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.charts import Chart, axis, category_axis, plot, shorten
from headrace.report.markup import Html, fold, note, table, tag
from headrace.report.section import Section
from headrace.report.variants.naming import COLORS, number_of
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.runs.formats.outcomes import ACCEPTANCE
from headrace.runs.formats.variants import SliceResult

#: Parts that are drawn; the table has all that are kept.
_DRAWN = 24
_ABOUT = (
    "A variant may be as often right on average and have forgotten a class, or fail in the dark. Each part is tested by "
    "itself, and a drop that is surely beyond what is allowed in a part rejects. Bars are intervals; small parts have wide "
    "ones, and say little. Those that lost most come first."
)


def slices_section(document: OptimizationDocument) -> Section | None:
    """Return the parts for every variant that was asked on the golden set, the recommended one's unfolded; None if none was."""
    shown = [one for one in document.attempts if one.validation.slices]
    if not shown:
        return None
    parts: list[Html] = [note(_ABOUT)]
    charts: list[Chart] = []
    for one in sorted(shown, key=lambda one: one.candidate != document.recommended):
        name = f"{number_of(document, one)} {one.name}"
        listed = slices_table(one.validation.slices, one.validation.num_slices, "as given", "this variant")
        if one.candidate == document.recommended:
            charts.append(slices_chart("slices", name, one.validation.slices))
            parts += [charts[0].element(), listed]
        else:
            parts.append(fold(f"{name}: {one.verdict}", listed))
    return Section(anchor="slices", title="Parts of the golden set", parts=parts, charts=charts)


def slices_about() -> Html:
    """Return what the table and the picture show."""
    return note(_ABOUT)


def slices_table(slices: Sequence[SliceResult], num_slices: int, a: str, b: str) -> Html:
    """Return parts as a table.

    Args:
        slices: In the order of reading.
        num_slices: That were looked at.
        a: What the incumbent is called.
        b: What the candidate is called.
    """
    head = ["part", "allowed drop", "items", a, b, "points", "interval"]
    made = table(head, [one.cells for one in slices], text_columns=2, caption="Parts of the golden set")
    more = num_slices - len(slices)
    return tag("div", made, note(f"{more:,} more lost less.") if more > 0 else None)


def slices_chart(name: str, title: str, slices: Sequence[SliceResult]) -> Chart:
    """Return the parts that lost most with their intervals.

    Args:
        name: Of the chart; see `Chart`.
        title: Of the chart.
        slices: Those that lost most first.
    """
    shown = slices[:_DRAWN]
    points = [
        {
            "value": [-100 * one.drop, place], "itemStyle": {"color": COLORS[ACCEPTANCE[one.outcome]]},
            "tip": [[one.name, ""], ["items", one.cells[2]], ["points", one.cells[-2]], ["interval", one.cells[-1]]],
        }
        for place, one in enumerate(shown)
    ]  # fmt: skip
    whiskers = [[place, -100 * one.high, -100 * one.low] for place, one in enumerate(shown)]
    series = [
        {"type": "custom", "renderItem": "whisker-x", "silent": True, "itemStyle": {"color": "var(--muted)"},
         "encode": {"x": [1, 2], "y": 0}, "data": whiskers},
        {"type": "scatter", "symbolSize": 9, "itemStyle": {"opacity": 1}, "data": points, "z": 5},
    ]  # fmt: skip
    return plot(
        name, title, "points won or lost in each part, with intervals", series,
        x_axis=axis("points won or lost"), y_axis=category_axis([shorten(one.name, 22) for one in shown]),
        height=56 + 22 * len(shown),
        legend={"within what is allowed": COLORS["accept"], "not known": COLORS["inconclusive"], "beyond": COLORS["reject"]},
    )  # fmt: skip
