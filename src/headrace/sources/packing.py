"""The items of a source on their way into shards: whoever writes these learns of items of which nothing comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headrace.base.records import Outcome, OutcomeKind
from headrace.sources.finite import Entry, FiniteSource, WorkList
from headrace.store.turns import Turns

_BEFORE = "it was given up at an earlier start of the run; the journal of the checkpoint says why"


class PackedSource(FiniteSource):
    """Gives out what another source lists, in the same order.

    Args:
        source: Lists the items.
        entries: What it listed.
        turns: Of the items; those that are done or given up already are passed by.
        give_up: Called with the id and the reason of an item of which nothing will come.
    """

    def __init__(
        self, source: FiniteSource, entries: Sequence[Entry], turns: Turns, give_up: Callable[[str, str], object]
    ) -> None:
        super().__init__(max_receives=source.max_receives)
        self._source = source
        self._entries = entries
        self._turns = turns
        self._give_up = give_up

    @property
    def where(self) -> str | None:
        """As the other source says."""
        return self._source.where

    @property
    def gives_files(self) -> bool:
        """As the other source says."""
        return bool(getattr(self._source, "gives_files", False))

    def entries(self) -> Iterator[Entry]:
        """Return what the other source listed."""
        return iter(self._entries)

    def follow(self, work_list: WorkList | None) -> None:
        """Give out the jobs of a work list; pass by those that ended before it was made."""
        if work_list is None:
            super().follow(None)
            return
        followed = work_list  # for the closure: not None
        remaining = {entry.id for entry in work_list.entries}
        for entry in self._entries:
            if entry.id not in remaining and self._turns.is_open(entry.id):
                self._give_up(entry.id, _BEFORE)

        def note(one: str, outcome: Outcome) -> None:
            # First here: killed in between, the item is done again and noted again.
            if outcome.kind in (OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED) and not outcome.undelivered:
                self._give_up(one, outcome.reason)
            followed.settled(one, outcome)

        super().follow(replace(work_list, settled=note))
