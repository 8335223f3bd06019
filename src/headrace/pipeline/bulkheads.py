"""Shares out the workers of a station among the servers and receivers that they wait on.

How this works: the station's queue has lanes (`laned_queue`), and the rules are `policies.shares`. Here is what they need of a
run: threads in the places of those that wait for a slow call, the part of what may be in flight that such calls may take, and
the end of an item that is turned away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from headrace.base.clock import Clock
from headrace.base.errors import Crowded, HeadraceError, ItemError
from headrace.base.parking import Bell
from headrace.base.plan import StagePlan
from headrace.base.policies.shares import Call
from headrace.pipeline.item import Item
from headrace.pipeline.laned_queue import LanedQueue, addressed_by
from headrace.stages.stage import Stage

logger = logging.getLogger("headrace")

#: The part of what may be in flight that waits for slow calls, in one station, and that is in their hands.
_PART_PARKED = 4


class Bulkheads:
    """Those of one station.

    Args:
        stages: Of the station.
        settings: Of its first stage, resolved.
        clock: Of the run.
        counts: Where to count what is turned away.
        fail: Called with an item that is turned away, why, and the station's name.
        start_worker: Starts one more worker, with this number.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        settings: StagePlan,
        clock: Clock,
        counts: dict[str, int],
        *,
        fail: Callable[[Item, ItemError, str], object],
        start_worker: Callable[[int], object],
    ) -> None:
        self._name = stages[0].name
        self._only_delivers = stages[0].role == "deliver"
        # A process of its own for each would take seconds to start and as much memory again.
        self._may_add = settings.executor != "process"
        self._fail = fail
        self._start_worker = start_worker
        self._counts = counts
        self._num_workers = self._num_threads = settings.workers or 1
        self.queue = LanedQueue(
            settings.queue_items or 1,
            settings.queue_bytes or 1,
            clock,
            self._num_workers,
            addressed_by(stages[0].goes_to),
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

    def take_calls(self, limit: int, over: Sequence[Call], bell: Bell) -> list[tuple[Item, Call]]:
        """Return the items whose calls may begin now, each with its call; see `LanedQueue.take_calls`."""
        return self.queue.take_calls(limit, over, bell)

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
            self._counts[f"{self._name}.slow_calls"] = self.queue.num_moved
        if not self._may_add or self._num_threads >= self._num_workers + self.queue.num_slow:
            return
        number = self._num_threads
        self._num_threads += 1  # first: where one thread carries all calls it looks at this when it is woken
        try:
            self._start_worker(number)
        except HeadraceError as error:
            logger.warning("no thread in the place of one that waits for a slow call: %s", error)

    def _may_turn_away(self, item: Item) -> bool:
        # Who comes to the delivery has a result, which is not to be worked out again.
        return item.job.keeps_results if self._only_delivers else item.job.may_wait

    def _turn_away(self, item: Item, seconds: float) -> None:
        name = self._name
        self._counts[f"{name}.turned_away"] = self._counts.get(f"{name}.turned_away", 0) + 1
        error = Crowded(
            "share.full: what it goes to answers slowly or not at all, and has its share of this stage already; it is offered "
            "again later"
        )
        error.retry_after_seconds = seconds
        self._fail(item, error, name)
