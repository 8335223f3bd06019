"""Wakes one thread, also from a signal handler."""

from __future__ import annotations

import contextlib
import threading


class Bell:
    """Wakes the one thread that waits for it; rung before that, it is heard at the next wait.

    A handler runs between any two instructions of a thread, perhaps while that thread holds the lock of a `threading.Event`,
    which would then wait for itself. To release a lock waits for nothing.
    """

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake whoever waits, or will; may be called from anywhere."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silence.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it was rung since the last wait; return False where it was not within `seconds`, > 0."""
        return self._silence.acquire(timeout=seconds)
