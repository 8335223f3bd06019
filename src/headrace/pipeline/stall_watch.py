"""Lets a run go on when a thread hangs in a user's stage, and ends it where it cannot.

How this works: the bookkeeper looks once a second. A thread cannot be stopped, so it is left behind: a daemon, whose result
nobody takes if it ever comes back, and another worker has its place. An item that hung alone is given up; of several that
were in hand together each is offered again and then run by itself, so that the culprit stands alone. Threads that are left
behind keep their memory, so there is a bound. Beyond it, and where the thread holds something that all need (a device, the
delivery, the source), the run ends with an error: what is not done can be resumed, in a process that is fresh.

A call that a thread carries among others is cancelled instead, and its place goes on. If that does not happen, the thread
itself hangs, and the run ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from headrace.base.errors import DeliveryFailed, StageStalled, TimeLimitExceeded
from headrace.base.policies.stalls import StallPolicy
from headrace.base.protocols import Source
from headrace.pipeline.carrying import Carrying
from headrace.pipeline.item import Item
from headrace.pipeline.settling import Settling
from headrace.pipeline.station import Station
from headrace.pipeline.worker import Worker
from headrace.sources.finite import FiniteSource

logger = logging.getLogger("headrace")

#: Since when (ns) and what a worker has in hand.
Hand = tuple[int, Sequence[Item]]

#: Threads of one run that may be left behind: each keeps its stack and what it works on.
MOST_LEFT_BEHIND = 16
_LOOK_SECONDS = 1.0
#: How long a thread that carries calls may take to cancel one.
_CANCEL_SECONDS = 5.0


class StallWatch:
    """Looks for workers that hang; used by one thread.

    Args:
        stations: Whose workers.
        limit_seconds: Longest time in a stage; 0: none.
        source: Of the run's jobs, for what a run that must end says.
        settling: Ends jobs that hang.
        broke: Ends the run with an error.
    """

    def __init__(
        self,
        stations: Sequence[Station],
        limit_seconds: float,
        source: Source,
        settling: Settling,
        broke: Callable[[BaseException], object],
    ) -> None:
        self._stations = stations
        self._source = source
        self._settling = settling
        self._broke = broke
        self._limit = limit_seconds
        self._policy = StallPolicy(limit_seconds)
        self._num_left = 0
        self._carrying_policy = StallPolicy(limit_seconds + _CANCEL_SECONDS)
        self._next_look = 0.0

    def look(self, now: float) -> None:
        """Do what is due; may be called at any time."""
        if not self._limit or now < self._next_look:
            return
        self._next_look = now + min(_LOOK_SECONDS, self._limit / 4)
        where = {worker: station for station in self._stations for worker in list(station.workers)}
        hands = {worker: hand for worker in where if (hand := worker.hand)}
        self._look_at_carried(now, where, hands)
        for worker in self._policy.find_stalled(now, hands):
            if worker.hand is hands[worker]:  # or it came back this moment, and may have taken others since
                if (carrying := where[worker].carrying) is not None:
                    self._cancel(where[worker], carrying, hands[worker])
                else:
                    self._leave_behind(where[worker], worker, hands[worker][1])

    def _look_at_carried(self, now: float, where: Mapping[Worker, Station], hands: Mapping[Worker, Hand]) -> None:
        """End the run if the thread that carries calls hangs itself: it has not cancelled one that it was to cancel."""
        carryings = {worker: carrying for worker in hands if (carrying := where[worker].carrying) is not None}
        carried = {worker: hands[worker] for worker in carryings}
        for worker in self._carrying_policy.find_stalled(now, carried) if carried else ():
            if worker.hand is hands[worker]:
                # All calls hang then; to blame is the one that the thread runs.
                at_work = (one for one, carrying in carryings.items() if carrying.is_at_work(hands[one][1]))
                culprit = next(at_work, worker)
                self._end_run(where[culprit], self._describe(where[culprit], hands[culprit][1]))

    def _leave_behind(self, station: Station, worker: Worker, items: Sequence[Item]) -> None:
        what = self._describe(station, items)
        if not station.can_lose_a_thread or self._num_left >= MOST_LEFT_BEHIND:
            self._end_run(station, what)
            return
        self._num_left += 1
        logger.warning("%s; the thread is left behind, %d of %d", what, self._num_left, MOST_LEFT_BEHIND)
        station.replace(worker)
        if len(items) > 1:
            station.run_alone(item.root.job.id for item in items)
            for item in items:
                self._settling.take_back(item, f"{what}; it will be tried by itself")
            return
        reason = (
            f"took longer than run.stall_seconds = {self._limit:g} and its thread was left behind; raise the limit, or set "
            f'stages.{station.name}.executor = "process" with time_limit_seconds, which can be stopped'
        )
        self._settling.give_up(items[0], TimeLimitExceeded(reason), station.name)

    def _cancel(self, station: Station, carrying: Carrying, hand: Hand) -> None:
        """End a call that one thread carries among others."""
        what = self._describe(station, hand[1])
        logger.warning("%s; its call is cancelled", what)
        carrying.cancel(hand)
        for item in hand[1]:
            if station.last_role == "deliver":  # the result is there: whoever keeps results tries again
                self._settling.fail(item, DeliveryFailed(what), station.name)
            else:
                self._settling.give_up(item, TimeLimitExceeded(f"{what}; raise the limit"), station.name)

    def _describe(self, station: Station, items: Sequence[Item]) -> str:
        names = ", ".join(item.id for item in items[:5]) + (", ..." if len(items) > 5 else "")
        return f"{names} took longer than run.stall_seconds = {self._limit:g} in stage {station.name}"

    def _end_run(self, station: Station, what: str) -> None:
        self._broke(
            StageStalled(
                f"{what}, and its thread cannot be replaced: {self._why_not(station)}. The run ends; {self._what_next()}"
            )
        )

    def _what_next(self) -> str:
        if isinstance(self._source, FiniteSource):
            return "one over a folder or list goes on with --resume"
        return (
            "what it had of a queue comes back there, at the latest when its loans run out, and counts as received once: start "
            "the run again, as --supervise does by itself"
        )

    def _why_not(self, station: Station) -> str:
        if station.carrying is not None:
            return "it carries the calls of all workers"
        if self._num_left >= MOST_LEFT_BEHIND:
            return f"{MOST_LEFT_BEHIND} were left behind already"
        if station.device_name:
            return "it holds the device"
        return "it delivers" if station.last_role == "deliver" else "it receives"
