"""How far each tensor between the layers is from that of the model as given."""

from __future__ import annotations

from typing import Any

from headrace.report.charts import Chart, axis, plot
from headrace.report.markup import Html, fold, note, table, tag
from headrace.report.section import Section
from headrace.report.variants.naming import number_of
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.runs.formats.variants import ValidationDocument

#: A relative distance below this stands at this: a logarithm has no zero.
_LEAST = 1e-7


def layers_section(document: OptimizationDocument) -> Section | None:
    """Return the distances of the variants for which they were taken, drawn and as tables; None if for none."""
    shown = [one for one in document.attempts if one.validation.layers]
    if not shown:
        return None
    charts = [
        layers_chart(f"layers-{number_of(document, one)}", f"{number_of(document, one)} {one.name}", one.validation)
        for one in shown
    ]
    parts: list[Html] = []
    for one, chart in zip(shown, charts, strict=True):
        named = f"{number_of(document, one)} {one.name}: every tensor"
        parts += [chart.element(), fold(named, layers_table(one.validation))]
    about = note(
        "Relative L2 distance from the model as given, tensor by tensor in the order of computation, for the variant to use "
        "and for those whose answers are further off than their precision explains. A jump names the layer to blame."
    )
    return Section(anchor="layers", title="Layer by layer", parts=[about, *parts], charts=charts)


def layers_chart(name: str, title: str, validation: ValidationDocument) -> Chart:
    """Return the distances as a line, with the first that is beyond what its precision explains marked.

    Args:
        name: Of the chart; see `Chart`.
        title: Of the chart.
        validation: With layers.
    """
    points: list[dict[str, Any]] = []
    for place, one in enumerate(validation.layers):
        tip = [[one.name, ""], [one.operator, ""], ["relative L2", one.cells[2]]]
        first = (
            {"symbolSize": 12, "itemStyle": {"color": "var(--failed)"}} if one.name == validation.diverges_at else {}
        )
        value = 1.0 if one.relative_l2 is None else max(_LEAST, one.relative_l2)
        points.append({"value": [place + 1, value], "tip": tip, **first})
    series = [
        {"type": "line", "data": points, "symbolSize": 5, "showSymbol": True, "lineStyle": {"width": 1.5},
         "itemStyle": {"color": "var(--c1)"}},
    ]  # fmt: skip
    blamed = validation.diverges_at
    told = f"relative L2; red: {blamed}, the first beyond what its precision explains" if blamed else "relative L2"
    return plot(
        name, title, "relative L2 distance of each tensor", series, upright=told, height=190,
        x_axis=axis("tensor, in the order of computation", low=0), y_axis=axis(kind="log"),
    )  # fmt: skip


def layers_table(validation: ValidationDocument) -> Html:
    """Return the distances as a table."""
    rows = [
        (tag("b", f"{one.name} ← the first") if one.name == validation.diverges_at else one.name, *one.cells[1:])
        for one in validation.layers
    ]
    head = ["tensor, in the order of computation", "made by", "relative L2", "SQNR, dB"]
    return table(head, rows, text_columns=2, caption="How far each layer is from that of the model as given")
