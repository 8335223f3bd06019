"""A search for a cheaper variant for a terminal: what was tried, what came of it, and accuracy against speed as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, quote_arg, wrap_lines
from headrace.base.plan import DEFAULT_ENGINE
from headrace.base.units import format_duration, format_size
from headrace.cli.variants_legend import variants_legend
from headrace.ledger.remedies import UNASKED

if TYPE_CHECKING:
    from headrace.runs.formats.census import CensusDocument
    from headrace.runs.formats.optimization import Attempt, OptimizationDocument
    from headrace.runs.formats.portability import PortabilityDocument
    from headrace.runs.formats.profile import Estimate
    from headrace.runs.formats.variants import LayerError, VariantSide

_BAR_COLUMNS = 30
_HEAD = (
    "", "technique", "engine", "expected", "times as fast", "interval", "drop, points", "size", "memory", "opens in", "verdict",
)  # fmt: skip
_OWN = ("own layout", "times with it")
#: Tensors that are shown of a layer-by-layer comparison.
_MOST_LAYERS = 10


def as_text(document: OptimizationDocument, plan_file: str | None) -> str:
    """Return the document as plain text.

    Args:
        document: The search.
        plan_file: The Plan that was to be written.
    """
    said = [document.says, *([document.business.says] if document.business else [])]
    parts = [
        wrap_lines(said), [*_table(document), *variants_legend(document)], _bars(document), _layouts(document),
        _reasons(document), _end(document, plan_file),
    ]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def census_text(document: CensusDocument) -> str:
    """Return a census as plain text."""
    rows = [["", "computes in", "layers", "of the time", "of the operations"]]
    for group in document.groups:
        flops = "-" if group.flops_share is None else f"{group.flops_share:.0%}"
        rows.append([group.kind, group.precision or "?", str(group.num_layers), f"{group.share:.0%}", flops])
    head = (
        f"{document.artifact} on {document.engine}, batch {document.batch_size}, threads {document.threads}: "
        f"{format_duration(document.latency_seconds)} a call"
    )
    advice = [line for one in document.advice for line in wrap_lines([f"- {one}"])]
    lines = [head, "", *align_columns(rows), "", *wrap_lines([document.says]), *advice]
    return "\n".join([*lines, *layers_told(document.layers, document.diverges_at)]) + "\n"


def layers_told(layers: Sequence[LayerError], diverges_at: str) -> list[str]:
    """Return the tensors that are furthest off in the order of computation, and where that begins."""
    if not layers:
        return []
    furthest = sorted(layers, key=lambda one: -_off(one))[:_MOST_LAYERS]
    shown = [one for one in layers if one in furthest or one.name == diverges_at]
    rows: list[tuple[str | None, ...]] = [("", "tensor", "made by", "relative L2", "SQNR, dB")]
    rows += [("*" if one.name == diverges_at else "", *one.cells) for one in shown]
    said = (
        "* the first beyond what its precision explains"
        if diverges_at
        else "none is beyond what its precision explains"
    )
    return [
        "",
        *align_columns(rows, num_left=3),
        "",
        f"{len(shown)} of {len(layers)} tensors, the furthest off; {said}",
    ]


def _off(error: LayerError) -> float:
    return math.inf if error.relative_l2 is None else error.relative_l2


def portability_text(document: PortabilityDocument) -> str:
    """Return where a model can run as plain text."""
    rows = [["engine", "options", "outcome"]]
    reasons = []
    for place in document.places:
        options = ", ".join(f"{key}={value}" for key, value in place.options.items())
        rows.append([place.engine, options, place.outcome])
        name = f"{place.engine} {options}".strip()
        reasons += [line for one in place.findings for line in wrap_lines([f"- {name}: {one}"])]
    head = f"{document.artifact}: opset {document.opset}, {document.precision}"
    parts = [[head], align_columns(rows), reasons]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _table(document: OptimizationDocument) -> list[str]:
    if not document.attempts:
        return []
    rows = [[*_HEAD]]
    rows.append(_first_row(document))
    rows += [_row(attempt, document) for attempt in document.attempts]
    if document.objective == "cost":
        cpu = [one.cpu for one in document.attempts]
        less = ["" if one is None else f"{one.mid:.2f}" for one in cpu]
        sure = ["" if one is None else one.interval(".2f") for one in cpu]
        rows = [
            [*row[:6], *own, *row[6:]]
            for row, own in zip(
                rows, [("times less CPU", "interval"), ("1.00", ""), *zip(less, sure, strict=True)], strict=True
            )
        ]
    laid_out = {one.of: _own_layout(one) for one in document.laid_out}
    if len(laid_out) > 1:
        names = ["", *(attempt.candidate for attempt in document.attempts)]
        rows = [
            [*row, *own]
            for row, own in zip(rows, [_OWN, *(laid_out.get(name, ("", "")) for name in names)], strict=True)
        ]
    return align_columns(rows)


def _first_row(document: OptimizationDocument) -> list[str]:
    """Return what is in use, which the others are held against."""
    mark = "+" if "baseline" in document.front else ""
    if document.in_use is None:
        given = [mark, "(as given)", DEFAULT_ENGINE, "", "1.00", "", "0", format_size(document.model.num_bytes)]
        return [*given, *_costs(document.baseline), ""]
    row = _row(document.in_use, document)
    return [mark, "(in use)", row[2], "", row[4], "", *row[6:8], *_costs(document.baseline), row[-1]]


def _own_layout(layout: Attempt) -> tuple[str, str]:
    """Return a variant's own layout, and what both came to over what is in use, in the Plan's."""
    return layout.layout_in_words, "1.00" if layout.whole is None else f"{layout.whole.ratio.mid:.2f}"


def _row(attempt: Attempt, document: OptimizationDocument) -> list[str]:
    mark = "*" if attempt.candidate == document.recommended else "+" if attempt.candidate in document.front else ""
    return [
        mark,
        attempt.technique,
        str(attempt.settings.get("engine", "")),
        attempt.expected_range,
        "-" if attempt.speedup is None else f"{attempt.speedup.mid:.2f}",
        "-" if attempt.speedup is None else attempt.speedup.interval(".2f"),
        "-" if attempt.drop is None else f"{100 * attempt.drop.mid:+z.2f}",
        format_size(attempt.artifact.num_bytes),
        *_costs(attempt.validation.b),
        attempt.outcome,
    ]


def _costs(side: VariantSide) -> tuple[str, str]:
    """Return the memory that a variant needs and how long it takes to open."""
    return format_size(side.memory_bytes), format_duration(side.open_seconds or None)


def _bars(document: OptimizationDocument) -> list[str]:
    """Return speed as bars: `=` up to the lower end of the interval, `-` to the upper one."""
    timed = [attempt for attempt in document.attempts if attempt.speedup is not None]
    if not timed:
        return []
    most = max(1.0, *(_high(attempt.speedup) for attempt in timed))
    rows = [[document.incumbent_mark, "=" * max(1, round(_BAR_COLUMNS / most)), ""]]
    for attempt in sorted(timed, key=lambda attempt: _high(attempt.speedup)):
        assert attempt.speedup is not None
        sure, maybe = (round(_BAR_COLUMNS * value / most) for value in (attempt.speedup.low, attempt.speedup.high))
        drop = "" if attempt.drop is None else f"{100 * attempt.drop.mid:+z.2f} points"
        rows.append([attempt.name, "=" * max(1, sure) + "-" * (maybe - sure), drop or attempt.verdict])
    return align_columns(rows)


def _layouts(document: OptimizationDocument) -> list[str]:
    """Return the layouts that were timed; `*` marks the last that took another's place."""
    layout = document.layout
    if layout is None or not layout.layouts:
        return []
    rows = [["", "workers x threads", "batch", "items/s", "times", "interval", "held against"]]
    used = next(one for one in reversed(layout.layouts) if one.chosen)
    for one in layout.layouts:
        ratio = one.ratio
        rows.append(
            [
                "*" if one is used and layout.verdict == "accept" else "", f"{one.workers} x {one.threads}", str(one.batch),
                f"{one.items_per_second:.4g}", "" if ratio is None else f"{ratio.mid:.2f}",
                "" if ratio is None else ratio.interval(".2f"), one.against,
            ]
        )  # fmt: skip
    return [*align_columns(rows), "", *wrap_lines([f"layout: {layout.says}"])]


def _high(estimate: Estimate | None) -> float:
    return estimate.high if estimate else 0.0


def _reasons(document: OptimizationDocument) -> list[str]:
    lines = []
    for attempt in document.attempts:
        if attempt.verdict == "reject" or attempt.says.startswith(UNASKED):
            known = f" (known from {attempt.id})" if attempt.is_recalled else ""
            lines += wrap_lines([f"{attempt.name}{known}: {attempt.says}"])
    for skipped in document.skipped:
        lines += wrap_lines([f"{skipped.technique}: not tried: {skipped.why}"])
    return lines


def _end(document: OptimizationDocument, plan_file: str | None) -> Sequence[str]:
    lines = [line for warning in document.warnings for line in wrap_lines([f"note: {warning}"])]
    laid_out = document.layout is not None and document.layout.verdict == "accept"
    if (document.recommended or laid_out) and plan_file:
        lines.append(f"written: {plan_file}; take it back: headrace ledger rollback {quote_arg(plan_file)}")
    elif document.recommended or laid_out:
        lines.append(
            "next: the same with -o plan.toml writes a Plan that uses it, at once: what was tried is in the ledger"
        )
    if document.next_command:
        measures = "measure the pipeline" if document.recommended or laid_out else "next"
        lines.append(f"{measures}: {document.next_command}")
    if document.attempts:
        lines.append(f"files: {Path(document.model.file).parent.parent}")
    return lines
