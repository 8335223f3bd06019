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

    def put(self, who: T, now_ns: int) -> None:
        """Let a deadline begin, or begin again."""
        self._at[who] = now_ns + self._length_ns
        self._at.move_to_end(who)

    def drop(self, who: T) -> None:
        """Forget one; it need not be here."""
        self._at.pop(who, None)

    def shorten(self, seconds: float, now_ns: int) -> None:
        """Let no deadline be farther off than this, now and later."""
        self._length_ns = min(self._length_ns, round(seconds * 1e9))
        latest_ns = now_ns + self._length_ns
        for who, at_ns in self._at.items():
            self._at[who] = min(at_ns, latest_ns)

    def lateness_ns(self, now_ns: int) -> int:
        """Return how long ago the oldest deadline passed; 0 where none has."""
        return max(0, now_ns - next(iter(self._at.values()), now_ns))

    def pop_passed(self, now_ns: int) -> Iterator[T]:
        """Remove and give those whose time is up, the oldest first."""
        while self._at and next(iter(self._at.values())) <= now_ns:
            yield self._at.popitem(last=False)[0]

    def pop_all(self) -> Iterator[T]:
        """Remove and give one after another, the oldest first, as long as the caller asks."""
        while self._at:
            yield self._at.popitem(last=False)[0]
