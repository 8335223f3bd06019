"""How requests ended, counted by whoever lets them in; read by metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol, runtime_checkable

#: Names of notes.
ANSWERS, ANSWER_MICROSECONDS = "serve.answers", "serve.answer_microseconds"
_ANSWERED = 200


class RequestTally:
    """Counts; thread-safe.

    Attributes:
        on_end: Called with the seconds that each answer took, from any thread; None: nobody asked.
    """

    def __init__(self) -> None:
        self.on_end: Callable[[float], object] | None = None
        self._lock = threading.Lock()
        self._statuses: Counter[int] = Counter()
        self._answer_seconds = 0.0

    def note_refused(self, status: int) -> None:
        """Count work that was not let in."""
        with self._lock:
            self._statuses[status] += 1

    def note_end(self, status: int, seconds: float) -> None:
        """Count an answer; 499 for work whose client is gone."""
        with self._lock:
            self._statuses[status] += 1
            self._answer_seconds += seconds if status == _ANSWERED else 0.0
        if self.on_end is not None:
            self.on_end(seconds)

    def notes(self) -> dict[str, int]:
        """Return how many were answered with a result, and how long that took since their first bytes, for `run.json`."""
        with self._lock:
            answers, seconds = self._statuses[_ANSWERED], self._answer_seconds
        return {ANSWERS: answers, ANSWER_MICROSECONDS: round(seconds * 1e6)} if answers else {}

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
