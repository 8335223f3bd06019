"""What an experiment measured, for a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, wrap_lines
from headrace.base.units import format_duration, format_rate

if TYPE_CHECKING:
    from headrace.runs.formats.experiment import ExperimentDocument, Interval, Perturbation

_ENDED = {
    "decided": "all that was asked is decided",
    "budget": "the time was up",
    "interrupted": "the run was stopped",
    "source_ended": "the source had no more jobs",
    "too_slow": "too few items a second for stretches of a few seconds",
}


def as_text(document: ExperimentDocument) -> str:
    """Return the answer, the sensitivities, and what it cost."""
    from headrace.diagnose.experimented import conclude, in_words

    found = conclude(document)
    seconds = format_duration(document.seconds)
    lines = [f"Experiment of {seconds} on the running pipeline ({_ENDED[document.ended]})", f"  {in_words(document)}"]
    if found is not None:
        lines.append(f"  {found.says}.")
    rate = format_rate(document.throughput)
    about = (
        f"With nothing changed {rate}; the perturbations cost {document.cost:.1%} of the throughput while it lasted."
    )
    parts = [wrap_lines(lines), wrap_lines([about])]
    made = [one for one in document.perturbations if one.num_pairs]
    if made:
        head = ("changed", "throughput", "sensitivity", "pairs", "")
        parts.append(align_columns([head, *map(_row, made)]))
        parts.append(wrap_lines(["Sensitivity: 1 where the resource is the limit, 0 where it has room."]))
    if not document.delivered:
        parts.append(
            wrap_lines(["Results were not delivered, so nothing is said of the delivery (--deliver delivers them)."])
        )
    parts += [wrap_lines([f"warning: {text}" for text in document.warnings])] if document.warnings else []
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _row(one: Perturbation) -> tuple[str, ...]:
    clear = "" if one.decided else one.left_out or "not decided"
    return (one.name, _interval(one.ratio, "x"), _interval(one.sensitivity), str(one.num_pairs), clear)


def _interval(found: Interval | None, sign: str = "") -> str:
    return "-" if found is None else f"{sign}{found}"
