"""Ordered output: holds back what is done until everything received before it is done or has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.pipeline.item import Item


class Reorderer:
    """Releases items in the order of their sequence; thread-safe.

    Args:
        release: Called with released items, in order, one call at a time. It must not wait: whoever settles an item that failed
            lets go of those behind it, and may be needed by whomever it waits for.
    """

    def __init__(self, release: Callable[[list[Item]], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._next = 0
        self._held: dict[int, Item | None] = {}

    def push(self, items: list[Item]) -> None:
        """Take finished items and release what is next in order."""
        with self._lock:
            self._held.update((item.sequence, item) for item in items)
            self._advance()

    def skip(self, sequence: int) -> None:
        """Note that an item will never come."""
        with self._lock:
            if sequence >= self._next:
                self._held.setdefault(sequence, None)
                self._advance()

    def held(self) -> int:
        """Return how many items are held back."""
        return sum(1 for item in list(self._held.values()) if item is not None)

    def _advance(self) -> None:
        ready = []
        while self._next in self._held:
            item = self._held.pop(self._next)
            self._next += 1
            if item is not None:
                ready.append(item)
        if ready:
            self._release(ready)


def release_in_order(items: list[Item]) -> None:
    """Put items into the queues of the stations where they are; never waits."""
    for item in items:
        item.route[item.position].queue.put([item], force=True)
