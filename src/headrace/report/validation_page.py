"""The page of one variant held against another: the verdict, every gate, parts of the golden set, what was lost, and layers."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.report.frame import make_page
from headrace.report.markup import DASH, Html, bullets, sentence, table, tag
from headrace.report.numbers import seconds, size
from headrace.report.section import Section
from headrace.report.variants.layers import layers_chart, layers_table
from headrace.report.variants.slices import slices_about, slices_chart, slices_table
from headrace.report.variants.worst import worst_about, worst_table
from headrace.runs.formats.variants import ValidationDocument, VariantSide, WorstItem
from headrace.runs.run_folder import headrace_version

_TITLES = {
    "accept": "B may stand in for A",
    "reject": "B may not stand in for A",
    "inconclusive": "It is not known whether B may stand in for A",
}
_BADGES = {"passed": "ok", "rejected": "failed", "inconclusive": "warning", "skipped": "plain"}


def render_validation(document: ValidationDocument, pictures: Mapping[WorstItem, str] | None = None) -> str:
    """Return the page of one comparison as an HTML document.

    Args:
        document: The comparison.
        pictures: {item of the golden set: picture as a `data:` address}.
    """
    sections = [_gates(document), _slices(document), _worst(document, pictures or {}), _layers(document)]
    overview = tag(
        "header",
        tag("p", "headrace · ", tag("b", document.b.name), " in place of ", tag("b", document.a.name), class_="kicker"),
        tag("h1", _TITLES[document.verdict]),
        tag("p", sentence(document.says)),
        bullets(document.warnings) if document.warnings else None,
        tag("p", "next: ", tag("code", document.next_command)) if document.next_command else None,
    )
    footer = f"Made by headrace {headrace_version()}. A dash ({DASH}) means not measured, never zero. Charts: Apache ECharts."
    name = f"{document.b.name} in place of {document.a.name}"
    return make_page(name, overview, [one for one in sections if one], footer, pictures=bool(pictures))


def _gates(document: ValidationDocument) -> Section:
    sides = [_side(name, one) for name, one in (("A", document.a), ("B", document.b))]
    rows = [[gate.name, _outcome(gate.outcome), gate.says] for gate in document.gates]
    head = ["", "variant", "engine", "precision", "threads", "opens in", "a call takes", "memory"]
    about = f"{document.num_items:,} items of {document.golden}; calls of {document.batch} were timed."
    parts = [
        table(head, sides, text_columns=5, caption="The two variants"), tag("p", about, class_="note"),
        table(["gate", "outcome", "why"], rows, text_columns=3, caption="Gates, cheapest first"),
    ]  # fmt: skip
    return Section(anchor="gates", title="Gates", parts=parts)


def _outcome(outcome: str) -> Html:
    return tag("span", outcome, class_=f"badge {_BADGES[outcome]}")


def _side(name: str, side: VariantSide) -> list[str | None]:
    return [
        name, *side.cells, seconds(side.open_seconds or None), seconds(side.call_seconds), size(side.memory_bytes)
    ]  # fmt: skip


def _slices(document: ValidationDocument) -> Section | None:
    if not document.slices:
        return None
    chart = slices_chart("slices", "B against A in each part", document.slices)
    listed = slices_table(document.slices, document.num_slices, "A", "B")
    parts = [slices_about(), chart.element(), listed]
    return Section(anchor="slices", title="Parts of the golden set", parts=parts, charts=[chart])


def _worst(document: ValidationDocument, pictures: Mapping[WorstItem, str]) -> Section | None:
    if not document.worst:
        return None
    parts = [worst_about(document.worst), worst_table(document.worst, pictures, "A", "B")]
    return Section(anchor="worst", title="Items that lost most", parts=parts)


def _layers(document: ValidationDocument) -> Section | None:
    if not document.layers:
        return None
    chart = layers_chart("layers", "B against A, tensor by tensor", document)
    parts = [chart.element(), layers_table(document)]
    return Section(anchor="layers", title="Layer by layer", parts=parts, charts=[chart])
