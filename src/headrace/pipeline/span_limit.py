"""Keeps the number of recorded spans a second below a limit by leaving out whole jobs; counters stay exact.

Without it a run folder would cost a third of the CPU at tens of thousands of passages a second, and spans would wait in memory
for their writer: ten stages at 7,000 items a second grew by 150 MB.
"""

from __future__ import annotations

from headrace.base.metering import Metering
from headrace.runs.formats.profiling import SamplingChange

#: Spans a second that cost a hundredth of a core to write: 1.2 us each where caches are warm, 3.4 us in a busy run.
SPAN_LIMIT_PER_SECOND = 3_000.0
_MOST_LEFT_OUT = 1 << 16
_DECISION_NS = 1_000_000_000
#: Seconds' worth of spans at the limit after which nobody waits for the next regular decision.
_FAR_ABOVE_SECONDS = 4.0


class SpanLimit:
    """Decides that one job in `metering.every` is recorded, a power of two; used by one thread.

    Args:
        metering: Of the run.
        now_ns: The run's clock.

    Attributes:
        per_second: The limit, > 0.
        changes: Every decision so far, with its moment.
    """

    def __init__(self, metering: Metering, now_ns: int) -> None:
        self.per_second = SPAN_LIMIT_PER_SECOND
        self.changes = [SamplingChange(at_ns=now_ns, every=1)]
        self._metering = metering
        self._decided = (now_ns, 0)

    def look(self, now_ns: int, passages: int) -> None:
        """Decide, where it is time to.

        A decision is due once a second, or at once where far more came than the limit allows: by the end of the second they
        would be a quarter of a million.

        Args:
            now_ns: The run's clock.
            passages: Through stages, recorded or not, since the run began.
        """
        then, before = self._decided
        recorded = (passages - before) / self._metering.every
        if now_ns - then < _DECISION_NS and recorded <= _FAR_ABOVE_SECONDS * self.per_second:
            return
        self._decided = now_ns, passages
        self._decide((passages - before) / max(now_ns - then, 1) * 1e9, now_ns)

    def _decide(self, rate: float, now_ns: int) -> None:
        """Take the rate of passages a second; `every` falls again only at a quarter of what made it rise, not to flutter."""
        every = self._metering.every
        while rate / every > self.per_second and every < _MOST_LEFT_OUT:
            every *= 2
        while every > 1 and rate / every < self.per_second / 4:
            every //= 2
        if every != self._metering.every:
            self._metering.every = every
            self.changes.append(SamplingChange(at_ns=now_ns, every=every))
