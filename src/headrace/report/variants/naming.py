"""What an attempt is called and how it is marked, the same in every picture and table of a page."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.markup import Html, tag
from headrace.runs.formats.optimization import Attempt, OptimizationDocument
from headrace.runs.formats.profile import Estimate

#: Of verdicts; Okabe and Ito's, told apart by the colour-blind.
COLORS = {"accept": "var(--c3)", "inconclusive": "var(--muted)", "reject": "var(--c2)"}
WORDS = {"accept": "accepted", "inconclusive": "not decided", "reject": "rejected"}
GIVEN = "var(--c1)"
"""Colour of what is in use."""
_BADGES = {"accept": "ok", "inconclusive": "warning", "reject": "failed"}


def find_used_drop(document: OptimizationDocument) -> Estimate:
    """Return what it has lost against the model as given, as a share of the right answers."""
    return (document.in_use.drop if document.in_use else None) or Estimate(0.0, 0.0, 0.0)


def find_used_bytes(document: OptimizationDocument) -> int:
    """Return the size of its file."""
    return (document.in_use.artifact if document.in_use else document.model).num_bytes


def legend_of(used: str) -> dict[str, str]:
    """Return the colours of a picture, with what it calls that which is in use."""
    return {used: GIVEN, **{WORDS[verdict]: COLORS[verdict] for verdict in WORDS}}


def number_of(document: OptimizationDocument, attempt: Attempt) -> int:
    """Return an attempt's number in pictures and tables, from 1; what is in use is 0."""
    return 1 + next(place for place, one in enumerate(document.attempts) if one.candidate == attempt.candidate)


def is_front(document: OptimizationDocument, attempt: Attempt) -> bool:
    """Return whether no other variant beats it."""
    return attempt.candidate in document.front


def whole_of(document: OptimizationDocument, attempt: Attempt) -> Estimate | None:
    """Return what a variant came to in its own layout; None where that was not looked for."""
    return next(
        (one.whole.ratio for one in document.laid_out if one.of == attempt.candidate and one.whole is not None), None
    )


def ties(document: OptimizationDocument) -> list[Attempt]:
    """Return the accepted variants that nobody can tell from the recommended one by speed; without that one itself.

    What a run-off told apart is no tie. None where a search was for size or cost: there another figure than speed has chosen.
    """
    if document.objective in ("size", "cost"):
        return []
    chosen = next((one for one in document.attempts if one.candidate == document.recommended), None)
    speed = None if chosen is None else whole_of(document, chosen) or chosen.speedup
    if chosen is None or speed is None:
        return []
    slower = {
        {one.a, one.b}.difference({one.chosen}).pop()
        for one in document.run_offs
        if one.ratio is not None and not one.ratio.low <= 1.0 <= one.ratio.high
    }
    found = []
    for other in document.attempts:
        other_speed = whole_of(document, other) or other.speedup
        if other is chosen or other.verdict != "accept" or other_speed is None or other.candidate in slower:
            continue
        if other_speed.low <= speed.high and speed.low <= other_speed.high:
            found.append(other)
    return found


def badge(verdict: str, gate: str | None) -> Html:
    """Return a verdict as a coloured word, with the gate that it comes from."""
    word = WORDS[verdict]
    return tag("span", f"{word} by {gate}" if gate else word, class_=f"badge {_BADGES[verdict]}")


def key(shapes: Sequence[tuple[str, str]]) -> Html:
    """Return a legend of shapes: [(kind, what it means)]; kinds are ring, dot, diamond, triangle, band and dashes."""
    return tag("ul", *(tag("li", _shape(kind), says) for kind, says in shapes), class_="legend")


def _shape(kind: str) -> Html:
    # Attributes of SVG, since the page's policy refuses `style`.
    drawn = {
        "dot": tag("circle", cx="7", cy="7", r="6", fill="var(--muted)"),
        "ring": tag("circle", cx="7", cy="7", r="5", fill="var(--muted)", stroke="var(--text)", stroke_width="2.5"),
        "diamond": tag("path", d="M7 0 14 7 7 14 0 7Z", fill="var(--muted)"),
        "triangle": tag("path", d="M0 2H14L7 13Z", fill="var(--muted)"),
        "band": tag("rect", y="1", width="14", height="12", fill="var(--shade)", stroke="var(--line)"),
        "dashes": tag("path", d="M0 7H14", stroke="var(--failed)", stroke_width="2", stroke_dasharray="4 3"),
    }[kind]
    return tag("svg", drawn, width="14", height="14", aria_hidden="true")
