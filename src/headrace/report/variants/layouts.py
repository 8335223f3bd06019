"""Workers, threads and batch: what was timed for each variant that its own layout could make the fastest."""

from __future__ import annotations

from headrace.report.markup import Html, note, table, tag
from headrace.report.numbers import digits
from headrace.report.section import Section
from headrace.runs.formats.optimization import Attempt, OptimizationDocument


def layouts_section(document: OptimizationDocument) -> Section | None:
    """Return the layouts of each variant that was laid out, the chosen one's first."""
    if document.layout is None:
        return None
    names = {attempt.candidate: attempt.name for attempt in document.attempts}
    others = [one for one in document.laid_out if one.of != document.layout.of]
    parts: list[Html] = []
    for layout in (document.layout, *others):
        parts += [tag("h3", names.get(layout.of, document.incumbent)), _table(layout), note(layout.says, ".")]
        if layout.whole is not None:
            ratio = layout.whole.ratio
            came_to = (
                f"Together {digits(ratio.mid)} times ({digits(ratio.low)} to {digits(ratio.high)}) the items per second of "
                f"{document.incumbent} at {layout.whole.before}."
            )
            parts.append(note(came_to))
    return Section(
        anchor="layout",
        title="Workers, threads and batch",
        parts=[*parts, note("The model alone: the other stages of a pipeline use the same cores.")],
    )


def _table(layout: Attempt) -> Html:
    rows = [
        [
            f"{one.workers} x {one.threads}{' ← taken' if one.chosen else ''}", str(one.batch), digits(one.items_per_second),
            None if one.ratio is None else digits(one.ratio.mid),
            None if one.ratio is None else f"{digits(one.ratio.low)} to {digits(one.ratio.high)}", one.against or None,
        ]
        for one in layout.layouts
    ]  # fmt: skip
    head = ["workers x threads", "batch", "items per second", "times", "interval", "held against"]
    return table(head, rows, text_columns=1, caption="Layouts in the order in which they were timed")
