"""Keeps the number of recorded spans a second below a limit by leaving out whole jobs; counters stay exact."""

from __future__ import annotations

from headrace.runs.formats.profiling import SamplingChange

#: Spans a second that cost a hundredth of a core to write: 1.2 us each where caches are warm, 3.4 us in a busy run.
SPAN_LIMIT_PER_SECOND = 3_000.0
_MOST_LEFT_OUT = 1 << 16
#: Seconds' worth of spans at the limit after which nobody waits for the next regular decision.
_FAR_ABOVE_SECONDS = 4.0


class RateLimit:
    """Decides that one job in `every` is recorded, a power of two.

    Args:
        spans_per_second: The limit, > 0.

    Attributes:
        every: The present decision.
        changes: Every decision so far, with its moment.
    """

    def __init__(self, spans_per_second: float, now_ns: int) -> None:
        self.every = 1
        self.changes = [SamplingChange(at_ns=now_ns, every=1)]
        self._limit = spans_per_second

    def is_far_above(self, passages: int) -> bool:
        """Return whether so many passages since the last decision, recorded or not, call for one at once.

        A decision is due once a second; by then a quarter of a million passages a second have filled the writer's queue.
        """
        return passages / self.every > _FAR_ABOVE_SECONDS * self._limit

    def tell(self, passages_per_second: float, now_ns: int) -> int:
        """Take the rate of passages through stages, recorded or not, and return `every` from now.

        It falls again only at a quarter of what made it rise, so that a rate near a border does not flutter.
        """
        every = self.every
        while passages_per_second / every > self._limit and every < _MOST_LEFT_OUT:
            every *= 2
        while every > 1 and passages_per_second / every < self._limit / 4:
            every //= 2
        if every != self.every:
            self.every = every
            self.changes.append(SamplingChange(at_ns=now_ns, every=every))
        return every
