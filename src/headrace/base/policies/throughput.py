"""Estimates throughput as early as possible, even if one item takes minutes."""

from __future__ import annotations

from collections import deque

#: Items that suffice for a rate; older ones are then left out.
_ENOUGH = 8
_SHORTEST_SECONDS = 1.0
#: Readings that are kept: the oldest goes when another comes.
_MOST_READINGS = 256
_LEAST_BETWEEN_SECONDS = 0.05


class Throughput:
    """Reads a counter and says how fast it grows. Not thread-safe.

    The rate is that of the last `_ENOUGH` items, and of a second at least; where there are fewer, of all within the horizon.
    Time in which there was nothing to do does not count.

    Args:
        horizon_seconds: Longest time that is looked back on, > 0.
    """

    def __init__(self, horizon_seconds: float) -> None:
        self._horizon = horizon_seconds
        self._between = max(_LEAST_BETWEEN_SECONDS, horizon_seconds / _MOST_READINGS)
        self._readings: deque[tuple[float, int]] = deque()
        self._busy_seconds = 0.0
        self._last: float | None = None

    def read(self, now: float, done: int, is_busy: bool) -> None:
        """Note the counter.

        Args:
            now: Seconds of a steady clock.
            done: The counter.
            is_busy: Whether there was anything to do since the last reading.
        """
        if self._last is not None and is_busy:
            self._busy_seconds += now - self._last
        self._last = now
        if self._readings and self._busy_seconds - self._readings[-1][0] < self._between:
            return
        self._readings.append((self._busy_seconds, done))
        while len(self._readings) > 2 and self._readings[1][0] <= self._busy_seconds - self._horizon:
            self._readings.popleft()

    def estimate_rate(self) -> float | None:
        """Return items per second; None if nothing was done yet, and the horizon has not passed."""
        found = self._window()
        if found is None:
            return None
        items, seconds = found
        return items / seconds if items or seconds >= self._horizon else None

    def is_settled(self) -> bool:
        """Return whether the rate rests on several items, or on a whole horizon: one may have been the exception."""
        found = self._window()
        return found is not None and (found[0] >= 3 or found[1] >= self._horizon)

    def _window(self) -> tuple[int, float] | None:
        if len(self._readings) < 2:
            return None
        end, done = self._readings[-1]
        items, seconds = 0, 0.0
        for at, count in reversed(self._readings):
            items, seconds = done - count, end - at
            if items >= _ENOUGH and seconds >= _SHORTEST_SECONDS:
                break
        return items, seconds
