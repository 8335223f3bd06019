"""The table of all variants that were tried, and why each was accepted or not."""

from __future__ import annotations

from headrace.report.markup import Html, fold, note, table, tag
from headrace.report.numbers import digits, seconds, size
from headrace.report.section import Section
from headrace.report.variants.naming import (
    badge,
    find_used_bytes,
    find_used_drop,
    is_front,
    number_of,
    ties,
)
from headrace.runs.formats.optimization import Attempt, OptimizationDocument


def tried_section(document: OptimizationDocument) -> Section:
    """Return the table."""
    head = [
        "technique", "engine", "verdict", "front", "times as fast", "interval", "points", "interval", "size", "memory",
        "opens in", "tried for",
    ]  # fmt: skip
    given = [
        f"0 ({document.incumbent_mark})", _find_used_engine(document), None,
        "front" if "baseline" in document.front else None, "1", None, f"{-100 * find_used_drop(document).mid:.3g}", None,
        size(find_used_bytes(document)), size(document.baseline.memory_bytes),
        seconds(document.baseline.open_seconds or None), None,
    ]  # fmt: skip
    equals = [one.candidate for one in ties(document)]
    rows = [given, *(_row(document, attempt, attempt.candidate in equals) for attempt in document.attempts)]
    return Section(
        anchor="tried",
        title="What was tried",
        parts=[
            table(head, rows, text_columns=4, caption="Variants with speed, accuracy and size"),
            note(
                f"Batches of {document.batch}, calls in turn with {document.incumbent}. Points are of the share of right "
                f"answers on {document.golden or 'no golden set'}; {100 * document.max_drop:g} may be lost. That set had "
                f"judged {document.golden_uses} attempts when this was written. Memory is that of a process that opens and "
                "calls it, engine included, at its peak, for variants that the golden set did not reject; opening is reading "
                "and compiling."
                + (" A tie is as fast as the one to use, as far as anybody can tell." if equals else "")
            ),
        ],
    )


def _find_used_engine(document: OptimizationDocument) -> str | None:
    """Return the engine of what is in use, as it ran: the model as given need not be an ONNX file."""
    found = document.in_use.settings.get("engine") if document.in_use else document.baseline.variant.get("engine")
    return None if found is None else str(found)


def _row(document: OptimizationDocument, attempt: Attempt, is_tie: bool) -> list[str | None]:
    chosen = attempt.candidate == document.recommended
    speedup, change = attempt.speedup, attempt.drop and attempt.drop.scaled(-100)
    name = f"{number_of(document, attempt)} {attempt.technique}"
    places = [*(["front"] if is_front(document, attempt) else []), *(["tie"] if is_tie else [])]
    return [
        tag("b", f"{name} ← use this") if chosen else name,
        str(attempt.settings.get("engine", "")),
        badge(attempt.verdict, attempt.gate),
        ", ".join(places) or None,
        None if speedup is None else digits(speedup.mid),
        None if speedup is None else f"{digits(speedup.low)} to {digits(speedup.high)}",
        None if change is None else f"{change.mid:+z.2f}",
        None if change is None else change.interval("+z.2f"),
        size(attempt.artifact.num_bytes),
        size(attempt.validation.b.memory_bytes),
        seconds(attempt.validation.b.open_seconds or None),
        seconds(attempt.seconds),
    ]


def reasons_section(document: OptimizationDocument) -> Section | None:
    """Return every gate of every variant, folded."""
    if not document.attempts:
        return None
    return Section(anchor="gates", title="Why", parts=[_reasons(document, attempt) for attempt in document.attempts])


def _reasons(document: OptimizationDocument, attempt: Attempt) -> Html:
    known = " (known from the ledger)" if attempt.is_recalled else ""
    rows = [[gate.name, gate.outcome, gate.says] for gate in attempt.validation.gates]
    made = attempt.artifact.made
    return fold(
        f"{number_of(document, attempt)} {attempt.id} {attempt.name}: {attempt.verdict}{known}",
        note(attempt.hypothesis),
        note(f"File {attempt.artifact.sha256[:16]}", f": {made}" if made else None),
        table(["gate", "outcome", "why"], rows, text_columns=3),
    )
