"""Whose turn it is: results come in any order and are written in the order of the list, whatever fails or is late.

A plain object without threads or files. An item is open, held (its bytes are kept for later) or past (written, or given up).
"""

from __future__ import annotations

from collections.abc import Sequence

_OPEN, _HELD, _PAST = 0, 1, 2


class Turns:
    """The order of a list of items.

    Args:
        ids: Of all items, each once.

    Attributes:
        num_past: Items that were written or given up.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids
        self._places = {one: place for place, one in enumerate(ids)}
        self._states = bytearray(len(ids))
        self._head = 0
        self.num_past = 0

    @property
    def next_id(self) -> str | None:
        """The first item that is not past; None: all are."""
        return self._ids[self._head] if self._head < len(self._ids) else None

    def place(self, one: str) -> int:
        """Return an item's place in the list."""
        return self._places[one]

    def knows(self, one: str) -> bool:
        """Return whether an item is in the list."""
        return one in self._places

    def is_past(self, one: str) -> bool:
        """Return whether an item was written or given up."""
        return self._states[self._places[one]] == _PAST

    def is_open(self, one: str) -> bool:
        """Return whether an item was neither written, given up nor kept for later."""
        return self._states[self._places[one]] == _OPEN

    def hold(self, one: str) -> None:
        """Note that an item's bytes are kept until its turn."""
        if not self.is_past(one):
            self._states[self._places[one]] = _HELD

    def pass_by(self, one: str) -> None:
        """Note that an item was written or given up."""
        place = self._places[one]
        self.num_past += self._states[place] != _PAST
        self._states[place] = _PAST
        while self._head < len(self._ids) and self._states[self._head] == _PAST:
            self._head += 1
