"""The items that a variant lost, with what is right and what both answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.report.markup import Html, fold, note, table, tag
from headrace.report.section import Section
from headrace.report.variants.naming import number_of
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.runs.formats.variants import WorstItem


def worst_section(document: OptimizationDocument, pictures: Mapping[WorstItem, str]) -> Section | None:
    """Return the items that each variant lost; None if none lost any."""
    parts = [
        fold(
            f"{number_of(document, one)} {one.id} {one.name}: {one.verdict}",
            worst_table(one.validation.worst, pictures, "as given", "this variant"),
        )
        for one in document.attempts
        if one.validation.worst
    ]
    if not parts:
        return None
    about = worst_about([item for one in document.attempts for item in one.validation.worst])
    return Section(anchor="worst", title="Items that lost most", parts=[about, *parts])


def worst_table(worst: Sequence[WorstItem], pictures: Mapping[WorstItem, str], a: str, b: str) -> Html:
    """Return some items side by side.

    Args:
        worst: The worst first.
        pictures: {item: picture as a `data:` address}.
        a: What the incumbent is called.
        b: What the candidate is called.
    """
    rows = [[one.cells[0], _picture_of(pictures, one), *one.cells[1:]] for one in worst]
    return table(["item", "", "right", a, b, "lost"], rows, text_columns=5, caption="Items lost")


def worst_about(worst: Sequence[WorstItem]) -> Html:
    """Return what the items are, and how their pictures are to be read."""
    said = "Items of the golden set for which a variant did worse, the worst first."
    if any(item.boxes for item in worst):
        said += (
            " Pictures, from the left: what is true (green), the best-scored detections of the one in use (blue), as many as "
            "there are true boxes, and those of the candidate (orange); lost is the share of the true boxes."
        )
    if any(item.outlines or item.outlines_a or item.outlines_b for item in worst):
        said += (
            " Pictures of masks, from the left: outlines of what is true (green), of what the one in use named (blue) and of "
            "what the candidate named (orange), without the class that covers most; lost is the mean IoU of an item's classes."
        )
    return note(said)


def _picture_of(pictures: Mapping[WorstItem, str], item: WorstItem) -> Html | None:
    return tag("img", src=pictures[item], alt=f"item {item.item}") if item in pictures else None
