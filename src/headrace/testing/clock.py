"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading


class FakeClock:
    """A `headrace.base.clock.Clock` that only `advance` moves. Thread-safe.

    Args:
        unix_seconds: Wall-clock time at the start; the monotonic clock starts at one second.
    """

    def __init__(self, unix_seconds: float = 1_800_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now_ns = 1_000_000_000
        self._offset_seconds = unix_seconds - 1.0

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""
        return self._now_ns

    def unix_seconds(self) -> float:
        """Return the wall-clock time in Unix seconds."""
        return self._offset_seconds + self._now_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Move both clocks forward.

        Raises:
            ValueError: If seconds is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not go back, got {seconds} s")
        with self._lock:
            self._now_ns += round(seconds * 1e9)
