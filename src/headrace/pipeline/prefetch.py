"""How many jobs may be in flight: enough to keep the workers busy, and no more than get done while they are lent.

Several workers share a queue. What one of them holds and cannot begin for minutes, another could have done. So until
something was delivered a run holds what its workers have in their hands at once; from then on what gets done, at the measured
rate, within half of the visibility timeout, or what the workers have in hand and one batch more, where that takes longer. Where
the rate falls, what waits and cannot be begun in time is given back, the newest first, and each job only once, because each
delivery of a job counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.policies.throughput import Throughput
from headrace.base.protocols import Source

if TYPE_CHECKING:
    from headrace.pipeline.runtime import Runtime

#: Of a source that lends nothing and limits what is in flight all the same.
_HORIZON_SECONDS = 30.0
_GIVE_BACK_SECONDS = 1.0
#: Times the limit: what is a little above it gets done soon.
_FAR_ABOVE = 2
_REASON = "more was received than can be done while it is lent; another worker may have it"


class Prefetch:
    """Sets a run's limit; used by one thread.

    Args:
        runtime: Whose limit; a Plan's own (`source.max_in_flight`) stands.
        source: Says how many may be in flight at a rate, and how long it lends them.
    """

    def __init__(self, runtime: Runtime, source: Source) -> None:
        self._runtime = runtime
        self._source = source
        self._is_set = runtime.plan.source.max_in_flight is not None
        self._lends = False
        self._throughput = Throughput(_HORIZON_SECONDS)
        self._given_back_at = 0.0

    def begin(self) -> None:
        """Set the first limit; the source is open, and nothing was received."""
        lent_seconds = getattr(self._source, "visibility_seconds", None)
        if self._is_set or lent_seconds is None:
            return
        self._lends = True
        self._throughput = Throughput(lent_seconds)
        self._runtime.limit_in_flight(
            sum(station.num_workers * station.max_batch for station in self._runtime.stations)
        )

    def look(self, now: float) -> None:
        """Set the limit by what got done; `now` in seconds of the run's clock."""
        runtime = self._runtime
        if self._is_set:
            return
        self._throughput.read(now, runtime.counters.delivered, runtime.num_inside > 0)
        rate = self._throughput.per_second()
        if rate is None:
            return
        batch = max(station.max_batch for station in runtime.stations)
        in_hand = sum(station.num_busy * station.max_batch for station in runtime.stations)
        # Half, so that most are done before their loan must be extended.
        limit = self._source.in_flight_limit(rate / 2, in_hand + batch)
        runtime.limit_in_flight(limit)
        if limit is not None and self._lends:
            self._give_back(now, limit)

    def _give_back(self, now: float, limit: int) -> None:
        if now < self._given_back_at + _GIVE_BACK_SECONDS or not self._throughput.is_settled():
            return
        self._given_back_at = now
        if self._runtime.num_inside > _FAR_ABOVE * limit:
            self._runtime.give_back(self._runtime.num_inside - limit, _REASON)
