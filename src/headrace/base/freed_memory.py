"""Gives memory that was freed back to the system: the C library keeps it, in pieces that fit few later wishes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable


def trim() -> None:
    """Give memory that was freed back to the system, as far as the C library can."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; without the GIL
    if call is not None:
        call(0)


class SometimesTrim:
    """Called where much was freed, by any thread: gives it back, but not more often than every so many seconds.

    Args:
        every_seconds: At least so long between two.
        give_back: What gives it back.
        now: Seconds of a steady clock.
    """

    def __init__(
        self,
        every_seconds: float,
        give_back: Callable[[], object] = trim,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = every_seconds
        self._give_back = give_back
        self._now = now
        self._next = now()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Give it back, or leave that to a later call."""
        with self._lock:
            now = self._now()
            if now < self._next:
                return
            self._next = now + self._every
        self._give_back()
