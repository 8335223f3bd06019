"""Where a candidate lost, as text: parts of the golden set, and single items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns

if TYPE_CHECKING:
    from headrace.runs.formats.variants import SliceResult, WorstItem

#: Parts and items that are shown; JSON and the page have more.
_MOST = 8


def slices_told(slices: Sequence[SliceResult], num_slices: int) -> list[str]:
    """Return the parts that lost most as a table, with how many there are; nothing where there is none."""
    if not slices:
        return []
    rows = [("part", "allowed drop", "items", "A", "B", "points", "interval"), *(one.cells for one in slices[:_MOST])]
    shown = min(_MOST, len(slices))
    of = "the part" if num_slices == 1 else f"{shown} of {num_slices} parts, those that lost most"
    return ["", *align_columns(rows, num_left=2), "", f"{of}; what is not known is too small to tell"]


def worst_told(worst: Sequence[WorstItem]) -> list[str]:
    """Return the items that lost most as a table; nothing where none lost."""
    if not worst:
        return []
    rows = [("item", "right", "A", "B", "lost"), *(one.cells for one in worst[:_MOST])]
    return ["", *align_columns(rows, num_left=4)]
