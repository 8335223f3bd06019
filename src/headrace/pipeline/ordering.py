"""Order: holds back what is done until everything received before it is done or has failed, all in all or in each stream."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from headrace.pipeline.item import Item


class Reorderer:
    """Releases items in the order in which they were expected; thread-safe.

    Args:
        release: Called with released items, in order, one call at a time. It must not wait: whoever settles an item that failed
            lets go of those behind it, and may be needed by whomever it waits for.
        by_stream: Whether each stream has an order of its own, so that none waits for another's.
    """

    def __init__(self, release: Callable[[list[Item]], None], *, by_stream: bool = False) -> None:
        self._release = release
        self._by_stream = by_stream
        self._lock = threading.Lock()
        #: {stream: {sequence: None while it is not done, then the item, or False if it will never come}}
        self._lines: dict[str | None, OrderedDict[int, Item | bool | None]] = {}

    def expect(self, item: Item) -> None:
        """Note an item that was received: those expected after it wait for it."""
        with self._lock:
            self._lines.setdefault(self._line_of(item), OrderedDict())[item.sequence] = None

    def push(self, items: list[Item]) -> None:
        """Take finished items and release what is next in order; one that ended meanwhile goes no further."""
        with self._lock:
            for item in items:
                self._note(item, item)

    def skip(self, item: Item) -> None:
        """Note that an item has ended: whether it came or not, nobody need wait for it."""
        with self._lock:
            self._note(item, False)

    def held(self) -> int:
        """Return how many items are held back."""
        with self._lock:
            return sum(1 for line in self._lines.values() for one in line.values() if one)

    def _line_of(self, item: Item) -> str | None:
        return item.job.stream if self._by_stream else None

    def _note(self, item: Item, what: Item | bool) -> None:
        name = self._line_of(item)
        line = self._lines.get(name)
        if line is None or line.get(item.sequence, False) is False:
            return  # it was let go before, or given up
        line[item.sequence] = what
        ready = []
        while line and next(iter(line.values())) is not None:
            _, first = line.popitem(last=False)
            if isinstance(first, Item):
                ready.append(first)
        if not line:
            del self._lines[name]
        if ready:
            self._release(ready)


def release_in_order(items: list[Item]) -> None:
    """Put items into the queues of the stations where they are; never waits."""
    for item in items:
        item.route[item.position].queue.put([item], force=True)
