"""Which items are blamed for the end of a process: those that were being worked on, tried again alone before any verdict.

A process that is killed does not say why: a machine that was taken away looks like an item that makes native code crash. So
nobody is blamed for a crash in company. Those that were in flight are suspects; they are tried one at a time before all else,
the least suspected first, so that kills from outside do not hit the same one again and again. An item is given up after as
many crashes as it may have tries, and only if the last of them found it alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Suspects:
    """Counts crashes by item."""

    crashes: dict[str, int] = field(default_factory=dict)
    """{item: crashes at which it was in flight}."""
    alone: set[str] = field(default_factory=set)
    """Items that were alone in flight at a crash."""

    def note_crash(self, in_flight: Iterable[str], *, alone: bool) -> None:
        """Note a crash and what was in flight; `alone`: it was the only item in the whole pipeline."""
        for item in in_flight:
            self.crashes[item] = self.crashes.get(item, 0) + 1
            if alone:
                self.alone.add(item)

    def is_guilty(self, item: str, max_crashes: int) -> bool:
        """Return whether an item is to be given up."""
        return item in self.alone and self.crashes.get(item, 0) >= max_crashes

    def sort_suspects(self, items: Iterable[str]) -> list[str]:
        """Return those of these items that are suspects, in the order in which they should be tried."""
        return sorted((item for item in items if item in self.crashes), key=lambda item: self.crashes[item])
