"""Whether the thread that sends acks and extends loans comes to it in time."""

from __future__ import annotations

import logging

from headrace.base.records import Tending

logger = logging.getLogger("headrace")

#: A loan is extended when half of it is used. A pause of half of that again is no harm yet, and near to it.
_NEAR = 0.25
#: A longer pause than the one last warned of is worth another line from here on.
_WORSE = 1.5


class Punctuality:
    """Measures the time between the calls of a source's `tend`; used by one thread."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._calls = 0
        self._longest_gap = 0.0
        self._longest_call = 0.0
        self._visibility: float | None = None
        self._warned_of = 0.0

    def tended(self, began: float, ended: float, visibility_seconds: float | None) -> None:
        """Note one call.

        Args:
            began: When it began, seconds of a steady clock.
            ended: When it came back.
            visibility_seconds: How long the source lends its jobs; None: for ever.
        """
        self._calls += 1
        self._visibility = visibility_seconds
        self._longest_call = max(self._longest_call, ended - began)
        gap = 0.0 if self._last is None else began - self._last
        self._last = began
        if gap <= self._longest_gap:
            return
        self._longest_gap = gap
        if self._is_near() and gap >= _WORSE * self._warned_of:
            self._warned_of = gap
            logger.warning("%s", self.warning())

    def rested(self) -> None:
        """Note that no job was in flight for a while: what goes by until the next call delays nothing."""
        self._last = None

    def tending(self) -> Tending:
        """Return what was measured up to now."""
        return Tending(
            calls=self._calls,
            longest_gap_seconds=self._longest_gap,
            longest_call_seconds=self._longest_call,
            visibility_seconds=self._visibility,
        )

    def warning(self) -> str | None:
        """Return what to say of a pause that came near to half of the visibility timeout; None: there was none."""
        if not self._is_near():
            return None
        return (
            f"acks and heartbeats paused for {self._longest_gap:.3g} s, and a loan lasts {self._visibility:g} s: where it runs "
            f"out, a job is done twice. The longest call of the queue took {self._longest_call:.3g} s; if that is not the "
            "reason, the cores are too busy or the process was stopped. Raise source.visibility_seconds, or lower workers"
        )

    def _is_near(self) -> bool:
        return self._visibility is not None and self._longest_gap > _NEAR * self._visibility
