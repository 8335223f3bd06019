"""How many jobs may be in flight: enough to keep the workers busy, and no more than get done while they are lent.

Several workers share a queue. What one of them holds and cannot begin for minutes, another could have done. So until
something was delivered a run holds what its workers have in their hands at once; from then on what gets done, at the measured
rate, within half of the visibility timeout, or what the workers have in hand and one batch more, where that takes longer. Where
the rate falls, what waits and cannot be begun in time is given back, the newest first, and each job only once, because each
delivery of a job counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.policies.throughput import Throughput
from headrace.base.protocols import Source
from headrace.pipeline.admission import Admission
from headrace.pipeline.item import Item
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.settling import Settling
from headrace.pipeline.station import Station

#: Of a source that lends nothing and limits what is in flight all the same.
_HORIZON_SECONDS = 30.0
_GIVE_BACK_SECONDS = 1.0
#: Times the limit: what is a little above it gets done soon.
_FAR_ABOVE = 2
_REASON = "more was received than can be done while it is lent; another worker may have it"


class Prefetch:
    """Sets a run's limit; used by one thread.

    Args:
        context: Of the run; a limit of the Plan's own (`source.max_in_flight`) stands.
        source: Says how many may be in flight at a rate, and how long it lends them.
        stations: Of the run.
        admission: Whose limit is set.
        settling: Gives jobs back.
    """

    def __init__(
        self,
        context: RunContext,
        source: Source,
        stations: Sequence[Station],
        admission: Admission,
        settling: Settling,
    ) -> None:
        self._counters = context.counters
        self._source = source
        self._stations = stations
        self._admission = admission
        self._settling = settling
        self._is_set = context.plan.source.max_in_flight is not None
        self._lends = False
        self._throughput = Throughput(_HORIZON_SECONDS)
        self._given_back_at = 0.0

    def begin(self) -> None:
        """Set the first limit; the source is open, and nothing was received."""
        lent_seconds = self._source.visibility_seconds
        if self._is_set or lent_seconds is None:
            return
        self._lends = True
        self._throughput = Throughput(lent_seconds)
        self._admission.limit_in_flight(sum(station.num_workers * station.max_batch for station in self._stations))

    def look(self, now: float) -> None:
        """Set the limit by what got done; `now` in seconds of the run's clock."""
        if self._is_set:
            return
        self._throughput.read(now, self._counters.delivered, self._admission.num_inside > 0)
        rate = self._throughput.estimate_rate()
        if rate is None:
            return
        batch = max(station.max_batch for station in self._stations)
        in_work = sum(station.num_busy * station.max_batch for station in self._stations)
        # Half, so that most are done before their loan must be extended.
        limit = self._source.in_flight_limit(rate / 2, in_work + batch)
        self._admission.limit_in_flight(limit)
        if limit is not None and self._lends:
            self._give_back(now, limit)

    def _give_back(self, now: float, limit: int) -> None:
        if now < self._given_back_at + _GIVE_BACK_SECONDS or not self._throughput.is_settled():
            return
        self._given_back_at = now
        if self._admission.num_inside <= _FAR_ABOVE * limit or self._admission.is_closed:
            return
        if self._admission.limit is not None:  # those of a limited run do not come again
            return
        count = self._admission.num_inside - limit
        for station in self._stations:
            if station.has_queue and not station.only_delivers:
                gone = station.queue.remove_newest(count, _may_go_back)
                for item in gone:
                    self._settling.take_back(item, _REASON)
                count -= len(gone)


def _may_go_back(item: Item) -> bool:
    return item.parent is None and item.job.attempt == 1 and not item.tries
