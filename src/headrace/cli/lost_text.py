"""Where a candidate lost, as text: parts of the golden set, and single items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import aligned

if TYPE_CHECKING:
    from headrace.runs.formats.variants import SliceResult, WorstItem

#: Parts and items that are shown; JSON and the page have more.
_MOST = 8
_WORDS = {"passed": "", "rejected": "too much", "inconclusive": "not known"}


def slices_told(slices: Sequence[SliceResult], num_slices: int) -> list[str]:
    """Return the parts that lost most as a table, with how many there are; nothing where there is none."""
    if not slices:
        return []
    rows = [["part", "items", "A", "B", "points", "interval", ""]]
    rows += [
        [
            one.name, f"{one.num_items:,}", _share(one.a), _share(one.b), f"{-100 * one.drop:+z.2f}",
            f"{-100 * one.high:+z.2f} to {-100 * one.low:+z.2f}", _WORDS[one.outcome],
        ]
        for one in slices[:_MOST]
    ]  # fmt: skip
    shown = min(_MOST, len(slices))
    of = "the part" if num_slices == 1 else f"{shown} of {num_slices} parts, those that lost most"
    return ["", *aligned(rows), "", f"{of}; what is not known is too small to tell"]


def worst_told(worst: Sequence[WorstItem]) -> list[str]:
    """Return the items that lost most as a table; nothing where none lost."""
    if not worst:
        return []
    rows = [["item", "right", "A", "B", "lost"]]
    rows += [
        [one.file or str(one.item), one.label or "-", one.a or "-", one.b or "-", f"{one.loss:.2g}"]
        for one in worst[:_MOST]
    ]
    return ["", *aligned(rows, num_left=4)]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
