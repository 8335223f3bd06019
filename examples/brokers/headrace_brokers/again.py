"""Jobs that are to be tried again by this process, after a pause."""

from __future__ import annotations

import heapq
import itertools
import time
from typing import Generic, TypeVar

T = TypeVar("T")


class Again(Generic[T]):
    """Holds what is due later. Not thread-safe."""

    def __init__(self) -> None:
        self._held: list[tuple[float, int, int, T]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, one: T, attempt: int, delay_seconds: float) -> None:
        """Hold it, to be given back as so many-th attempt."""
        heapq.heappush(self._held, (time.monotonic() + delay_seconds, next(self._numbers), attempt, one))

    def take(self, limit: int) -> list[tuple[T, int]]:
        """Return what is due, each with its attempt."""
        found: list[tuple[T, int]] = []
        while self._held and len(found) < limit and self._held[0][0] <= time.monotonic():
            _, _, attempt, one = heapq.heappop(self._held)
            found.append((one, attempt))
        return found

    def clear(self) -> None:
        """Forget all of it."""
        self._held.clear()
