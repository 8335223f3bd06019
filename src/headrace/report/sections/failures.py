"""What failed: every reason with its number, the first item, and the lines of the user's code."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.markup import Html, fold, join, note, table, tag
from headrace.report.numbers import count
from headrace.report.section import Section
from headrace.runs.formats.failures import FailureReason
from headrace.runs.formats.profile import ProfileDocument

#: Failed deliveries for each delivered job from which on failures are what matters most.
_MATTERS = 0.1


def failures(reasons: Sequence[FailureReason], document: ProfileDocument) -> Section | None:
    """Return the reasons; None if nothing failed."""
    if not reasons:
        return None
    delivered = document.counters.get("delivered")
    in_vain = [note(tag("b", "Nothing was delivered. "), "All figures of this page are of work in vain.")] * (
        not delivered
    )
    head = ["reason", "first item", "rejected or given up", "tried again", "given back"]
    rows = [
        [_reason(row), row.first_item or None, *map(count, (row.count, row.retried, row.returned))] for row in reasons
    ]
    return Section(anchor="failures", title="What failed", parts=[*in_vain, table(head, rows, text_columns=2)])


def matters(reasons: Sequence[FailureReason], document: ProfileDocument) -> bool:
    """Return whether failures are to stand first: nothing was delivered, or one delivery in ten failed."""
    delivered = document.counters.get("delivered")
    failed = sum(row.num_deliveries for row in reasons)
    return failed > 0 and (not isinstance(delivered, int) or failed >= _MATTERS * delivered)


def _reason(row: FailureReason) -> Html:
    parts = [tag("b", row.code), ": ", row.example]
    if row.origin is not None and row.origin.traceback:
        parts.append(fold(f"{row.origin.place}, in {row.origin.function}", tag("pre", row.origin.traceback)))
    return join(parts)
