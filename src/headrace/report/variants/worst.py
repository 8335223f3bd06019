"""The items that a variant lost, with what is right and what both answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.report.markup import Html, folded, note, table, tag
from headrace.report.section import Section
from headrace.report.variants.naming import name_of, number_of
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.runs.formats.variants import WorstItem


def worst_section(document: OptimizationDocument, pictures: Mapping[int, str]) -> Section | None:
    """Return the items that each variant lost; None if none lost any."""
    parts = [
        folded(
            f"{number_of(document, one)} {one.id} {name_of(one)}: {one.verdict}",
            worst_table(one.validation.worst, pictures, "as given", "this variant"),
        )
        for one in document.attempts
        if one.validation.worst
    ]
    if not parts:
        return None
    about = note("Items of the golden set for which a variant did worse than the model as given, the worst first.")
    return Section(anchor="worst", title="Items that lost most", parts=[about, *parts])


def worst_table(worst: Sequence[WorstItem], pictures: Mapping[int, str], a: str, b: str) -> Html:
    """Return some items side by side.

    Args:
        worst: The worst first.
        pictures: {item: picture as a `data:` address}.
        a: What the incumbent is called.
        b: What the candidate is called.
    """
    rows = [
        [
            _picture_of(pictures, item.item), item.file or str(item.item), item.label or None, item.a or None, item.b or None,
            f"{item.loss:.2g}",
        ]
        for item in worst
    ]  # fmt: skip
    return table(["", "item", "right", a, b, "lost"], rows, text_columns=5, caption="Items lost")


def _picture_of(pictures: Mapping[int, str], item: int) -> Html | None:
    return tag("img", src=pictures[item], alt=f"item {item}") if item in pictures else None
