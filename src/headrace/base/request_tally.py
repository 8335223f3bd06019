"""How requests ended, counted by whoever lets them in; read by metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol, runtime_checkable


class RequestTally:
    """Counts; thread-safe.

    Attributes:
        on_end: Called with the seconds that each answer took, from any thread; None: nobody asked.
    """

    def __init__(self) -> None:
        self.on_end: Callable[[float], object] | None = None
        self._lock = threading.Lock()
        self._statuses: Counter[int] = Counter()

    def note_refused(self, status: int) -> None:
        """Count work that was not let in."""
        with self._lock:
            self._statuses[status] += 1

    def note_end(self, status: int, seconds: float) -> None:
        """Count an answer; 499 for work whose client is gone."""
        with self._lock:
            self._statuses[status] += 1
        if self.on_end is not None:
            self.on_end(seconds)

    def statuses(self) -> dict[int, int]:
        """Return {HTTP status: how many ended so}, those that were refused included."""
        with self._lock:
            return dict(self._statuses)


@runtime_checkable
class TalliesRequests(Protocol):
    """A source whose jobs are requests."""

    @property
    def tally(self) -> RequestTally:
        """How they ended so far."""
        ...

    @property
    def num_open(self) -> int:
        """Those that have no answer yet."""
        ...
