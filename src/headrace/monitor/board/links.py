"""Links of the board: a page that is a file of its own leads nowhere."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.monitor.board.records import Record
from headrace.report.markup import Html, join, tag

#: Kinds that have a page of their own.
PAGES = ("run", "incident", "ledger", "history", "drift", "loop")


@dataclass(frozen=True, slots=True)
class Links:
    """Makes them."""

    is_served: bool

    def to(self, record: Record, text: str) -> Html:
        """Return a link to the page of something that was found; its text alone in a file, and where there is none."""
        has_page = self.is_served and record.kind in PAGES
        return tag("a", text, href=f"/{record.kind}/{record.id}") if has_page else join([text])

    def compare(self, before: Record, after: Record) -> Html | None:
        """Return a link to the comparison of two runs; None in a file."""
        if not self.is_served:
            return None
        return tag("a", "compare them", href=f"/compare?run={before.id}&run={after.id}")
