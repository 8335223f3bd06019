"""The one clock of a run. Spans are in nanoseconds of a monotonic clock that all processes of a host share."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time. `headrace.testing.FakeClock` is the other implementation."""

    def now_ns(self) -> int:
        """Return nanoseconds of the host's monotonic clock; comparable between processes of one boot."""
        ...

    def unix_seconds(self) -> float:
        """Return wall-clock time as Unix seconds; may jump."""
        ...


class SystemClock:
    """The host's clock: CLOCK_MONOTONIC, which every process of the host reads alike."""

    # staticmethod of the C function itself: no Python frame in the hot path.
    now_ns = staticmethod(time.monotonic_ns)
    unix_seconds = staticmethod(time.time)
