"""Shares out the workers of a station among the servers and receivers that they wait on.

How this works: the station's queue has lanes (`laned_queue`), and the rules are `policies.shares`. Here is what they need of a
run: threads in the places of those that wait for a slow call, the part of what may be in flight that such calls may take, and
the end of an item that is turned away.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import Crowded, HeadraceError
from headrace.base.policies.shares import Call
from headrace.pipeline.item import Item
from headrace.pipeline.laned_queue import LanedQueue, addressed_by
from headrace.stages.stage import Stage

if TYPE_CHECKING:
    from headrace.pipeline.runtime import Runtime
    from headrace.pipeline.station import Station

logger = logging.getLogger("headrace")

#: The part of what may be in flight that waits for slow calls, in one station, and that is in their hands.
_PART_PARKED = 4


class Bulkheads:
    """Those of one station.

    Args:
        runtime: What joins the stations.
        station: Whose workers are shared out.
        capacity: Bound of its queue in items, >= 1.
        capacity_bytes: Bound of its queue in bytes.
    """

    def __init__(self, runtime: Runtime, station: Station, capacity: int, capacity_bytes: int) -> None:
        self._runtime = runtime
        self._station = station
        self._counts: dict[str, int] = {}
        station.counts.append(self._counts)
        self._num_threads = station.num_workers
        self.queue = LanedQueue(
            capacity,
            capacity_bytes,
            runtime.clock,
            station.num_workers,
            addressed_by(station.stages[0].goes_to),
            self._turn_away,
            self._may_turn_away,
        )

    @staticmethod
    def are_of_use(stages: Sequence[Stage]) -> bool:
        """Return whether the workers of a group wait on others, and no device among them needs batches."""
        return stages[0].waits_on_many and not any(stage.kind == "device" for stage in stages)

    def take_for(self, limit: int, before: Call | None) -> tuple[list[Item], Call | None]:
        """Return items for one server or receiver, and the call; see `LanedQueue.take_for`."""
        return self.queue.take_for(limit, before)

    @property
    def num_threads(self) -> int:
        """Workers that there are, with those in the places of others that wait for a slow call."""
        return self._num_threads

    def end(self, call: Call) -> None:
        """Take back the place of a call whose worker was left behind."""
        self.queue.end(call)

    def slow_and_parked(self) -> tuple[int, int]:
        """Return how many calls take long now, and how many items wait for those."""
        return self.queue.num_slow, self.queue.num_parked()

    def tend(self, max_in_flight: int) -> None:
        """Put a thread in the place of each that waits for a slow call; called by the bookkeeper every few tens of ms."""
        self.queue.limit_parked(max_in_flight // _PART_PARKED)
        self.queue.look()
        if self.queue.num_moved:
            self._counts[f"{self._station.name}.slow_calls"] = self.queue.num_moved
        wanted = self._station.num_workers + self.queue.num_slow
        # A process of its own for each would take seconds to start and as much memory again.
        if self._num_threads >= wanted or self._station.settings.executor == "process":
            return
        try:
            self._runtime.start_worker(self._station, self._num_threads)
        except HeadraceError as error:
            logger.warning("no thread in the place of one that waits for a slow call: %s", error)
        self._num_threads += 1

    def _may_turn_away(self, item: Item) -> bool:
        # Who comes to the delivery has a result, which is not to be worked out again.
        return item.job.keeps_results if self._station.only_delivers else item.job.may_wait

    def _turn_away(self, item: Item, seconds: float) -> None:
        name = self._station.name
        self._counts[f"{name}.turned_away"] = self._counts.get(f"{name}.turned_away", 0) + 1
        error = Crowded(
            "share.full: what it goes to answers slowly or not at all, and has its share of this stage already; it is offered "
            "again later"
        )
        error.retry_after_seconds = seconds
        self._runtime.fail(item, error, name)
