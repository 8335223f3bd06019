"""How long the threads beside the items pause between two looks: a tick while jobs are in flight, longer while there are none.

How this works: heartbeat, bookkeeper and flusher pause here. Once no job was in flight for a while, there is nothing left to
extend, count or write, and they rest until receivers `stir` them or until a second has passed: an idle worker that looks thirty
times a second with three threads takes a hundredth of a core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

TICK_SECONDS = 0.03
#: How long nothing was in flight before threads rest: acks of the last jobs are sent by then.
_QUIET_AFTER_SECONDS = 1.0
#: The longest rest, and the share of the visibility timeout that one may take: loans are extended when half is used.
_REST_SECONDS, _MOST_OF_LOAN = 1.0, 0.1


class Rest:
    """Where the threads beside the items of a run pause; thread-safe.

    Args:
        is_empty: Whether no job is in flight.
        now: Seconds of a steady clock.
    """

    def __init__(self, is_empty: Callable[[], bool], now: Callable[[], float] = time.monotonic) -> None:
        self._is_empty = is_empty
        self._now = now
        self._busy_at = now()
        self._may_rest = False
        self._stirred = threading.Event()
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether the run closes."""
        return self._over.is_set()

    def end(self) -> None:
        """Let all threads see that the run closes."""
        self._over.set()
        self._stirred.set()

    def stir(self) -> None:
        """Let threads that rest go on: jobs have come."""
        self._busy_at = self._now()
        if self._may_rest:
            self._may_rest = False
            self._stirred.set()

    def pause(self, loan_seconds: float | None = None) -> bool:
        """Pause until the next look is due; return whether that was a rest.

        Args:
            loan_seconds: The visibility timeout, for who extends loans; None: nothing is lent.
        """
        if not self._is_quiet():
            self._over.wait(TICK_SECONDS)
            return False
        self._stirred.clear()
        self._may_rest = True
        if self._is_quiet():  # jobs that came before would stir nobody
            most = _REST_SECONDS if loan_seconds is None else min(_REST_SECONDS, _MOST_OF_LOAN * loan_seconds)
            self._stirred.wait(most)
        return True

    def _is_quiet(self) -> bool:
        now = self._now()
        if not self._is_empty():
            self._busy_at = now
        return now - self._busy_at >= _QUIET_AFTER_SECONDS and not self.is_over
