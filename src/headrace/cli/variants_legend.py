"""What marks and columns of the table of variants mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.formatting import wrap_lines
from headrace.runs.formats.optimization import ON_THE_FRONT

if TYPE_CHECKING:
    from headrace.runs.formats.optimization import OptimizationDocument


def variants_legend(document: OptimizationDocument) -> list[str]:
    """Return the legend, as far as what it explains is in the table."""
    said = []
    if document.recommended is not None:
        said.append("* the one to use")
    if any(name != document.recommended for name in document.front):
        said.append(f"+ {ON_THE_FRONT}")
    if any(one.predicted is not None for one in document.attempts):
        said.append("expected: times as fast, said before it was timed")
    if any(one.speedup is not None for one in document.attempts):
        items = f"{document.batch} item{'' if document.batch == 1 else 's'}"
        said.append(f"times as fast: calls of {items} one after the other, in turn with {document.incumbent}")
    if document.baseline.memory_bytes is not None:
        said.append("memory: at its peak, of a process that opens and calls it, engine included")
    if len(document.laid_out) > 1:
        said.append(_explain_layouts(document))
    return wrap_lines(["; ".join(said)]) if said else []


def _explain_layouts(document: OptimizationDocument) -> str:
    """Say what the second pair of columns is, and why it may differ from the first where nothing else does."""
    wholes = [one.whole for one in document.laid_out if one.whole is not None]
    before = f" at {wholes[0].before}" if wholes else ""
    said = (
        f"times with it: items per second in its own layout over {document.incumbent}{before}, at the end; this decides"
    )
    if any(one.before == one.after for one in wholes):
        said += (
            "; where both have one layout the two columns tell of the same thing in different minutes, and what lies between "
            "them is what this machine's minutes differ by"
        )
    return said
