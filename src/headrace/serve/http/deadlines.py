"""Deadlines of connections: one length for all, so the oldest is the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Who has to be done by when. Every operation takes the same time, however many wait."""

    def __init__(self, seconds: float) -> None:
        self._length_ns = round(seconds * 1e9)
        self._at: OrderedDict[T, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[T]:
        return iter(self._at)

    def put(self, who: T, now_ns: int) -> None:
        """Let a deadline begin, or begin again."""
        self._at[who] = now_ns + self._length_ns
        self._at.move_to_end(who)

    def drop(self, who: T) -> None:
        """Forget one; it need not be here."""
        self._at.pop(who, None)

    def oldest(self) -> T | None:
        """Return who is next; None if nobody waits."""
        return next(iter(self._at), None)

    def pop_passed(self, now_ns: int) -> Iterator[T]:
        """Remove and give those whose time is up."""
        while self._at:
            who, at_ns = next(iter(self._at.items()))
            if at_ns > now_ns:
                return
            del self._at[who]
            yield who
