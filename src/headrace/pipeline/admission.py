"""Lets jobs into a run: how many may be inside, which are in flight, and whether more may come.

How this works: one lock, taken once for all items that are handled together. Receivers reserve room before they ask the
source and enter the jobs that came; a job leaves when it is settled. A result that waits to become durable is in flight and no
longer inside, so that others may come. A receiver that waits for room is called when there is enough of it (see `Refill`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from headrace.base.parking import Parking
from headrace.base.records import Job, Outcome, OutcomeKind, Receiving
from headrace.pipeline.bell import Bell
from headrace.pipeline.failing import Failing
from headrace.pipeline.item import Item
from headrace.pipeline.receiver_totals import ReceivingBook
from headrace.pipeline.refill import Refill
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.run_limit import RunLimit
from headrace.pipeline.station import Station
from headrace.pipeline.task_shares import TaskShares

_COUNTER = {
    OutcomeKind.DELIVERED: "delivered",
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.DEAD_LETTERED: "dead_lettered",
    OutcomeKind.RETRY: "retried",
    OutcomeKind.RETURNED: "returned",
}


class Admission:
    """The jobs of one run; thread-safe.

    Args:
        context: Of the run.
        stations: Of the run: what they hold bounds what may be in flight.
        failing: Says how many may be inside while nothing succeeds.
        tasks: Shares out what may be in flight; None where there is one task.
        limit: How many jobs may be received; None for no limit.
        attention: As below.
        first_alone: Let one job in, and the others when it is through.

    Attributes:
        max_in_flight: Jobs that may be inside.
        is_closed: No more jobs are let in.
        is_given_up: Everything that is not settled goes back to the source.
        has_ended: No receiver is left.
        idle: Set once no receiver is left and no job is in flight.
        attention: Rings where the thread that called `run` should look; that of the run's signals.
        limit: That of the run.
    """

    def __init__(
        self,
        context: RunContext,
        stations: Sequence[Station],
        failing: Failing,
        tasks: TaskShares | None,
        limit: RunLimit | None,
        *,
        attention: Bell,
        first_alone: bool = False,
    ) -> None:
        self._context = context
        self._stations = stations
        self._failing = failing
        self._tasks = tasks
        self._plan = context.plan.source
        self.limit = limit
        self._first_is_alone = first_alone
        self._lock = threading.Lock()
        self._receivers = Parking(self._lock)
        in_hand = sum(station.num_workers * station.max_batch for station in stations)
        self._refill = Refill(self._plan.receive_batch, in_hand)
        self._in_flight: dict[int, Item] = {}
        self._inside = 0
        self._reserved = 0
        self._num_receiving = self._plan.receivers
        self._book = ReceivingBook(self._plan.receivers)
        self._seems_over = False
        self.max_in_flight = self._capacity()
        self._cap: int | None = None
        self.is_closed = False
        self.is_given_up = False
        self.has_ended = False
        self.idle = threading.Event()
        self.attention = attention

    @property
    def num_inside(self) -> int:
        """Jobs that count against the limit, with those that were asked for."""
        return self._inside

    @property
    def num_in_flight(self) -> int:
        """Jobs that were received and are not settled."""
        return len(self._in_flight)

    @property
    def is_empty(self) -> bool:
        """Whether no job is inside."""
        return self._inside == self._reserved

    def is_draining(self) -> bool:
        """Return whether no more items can come, so that a batch need not wait for company."""
        return self.is_closed or self.has_ended or self._seems_over

    def has_all(self) -> bool:
        """Return whether as many jobs were received as the run's limit allows."""
        return self.limit is not None and self.limit.left(self._context.counters.received) <= 0

    def close(self) -> bool:
        """Let no more in; return whether that was so already."""
        with self._lock:
            again, self.is_closed = self.is_closed, True
            self._receivers.call_all()
        self.wake_workers()
        self.attention.ring()
        return again

    def wake_workers(self) -> None:
        """Let workers that wait for company look whether any can come."""
        for station in self._stations:
            station.queue.wake()

    def limit_in_flight(self, limit: int | None) -> None:
        """Let this many jobs be in flight, as far as queues and workers can hold them; None: as many as that."""
        with self._lock:
            before, most = self.max_in_flight, self._capacity()
            self.max_in_flight = most if limit is None else min(limit, most)
            if self.max_in_flight > before:
                self._receivers.call_all()

    def cap_in_flight(self, most: int | None) -> None:
        """Let no more jobs be in flight than this, whatever the throughput would allow; None: nothing caps them."""
        with self._lock:
            self._cap = most
            self._receivers.call_all()

    def has_none(self) -> bool:
        """Return whether no job is in flight."""
        return not self._in_flight

    def items(self) -> list[Item]:
        """Return the jobs in flight."""
        with self._lock:
            return list(self._in_flight.values())

    def is_busy_beyond(self, tasks: Collection[str]) -> bool:
        """Return whether a job is in flight that is of none of these tasks."""
        with self._lock:
            return any(item.job.task not in tasks for item in self._in_flight.values())

    # --- called by receivers

    def reserve_room(self) -> int:
        """Wait until something may be received and return how much; 0 at the end.

        What is asked for counts as inside until the source has answered, or several receivers would ask for the same room.
        """
        waiting_since, is_patient = 0, True
        clock = self._context.clock
        with self._lock:
            while not self.is_closed:
                room = self._room()
                if room is None:
                    return 0
                if room > 0 and (self._has_enough_room() or not is_patient):
                    self._inside += room
                    self._reserved += room
                    if waiting_since:
                        self._book.waited((clock.now_ns() - waiting_since) / 1e9)
                    self._call_receiver()  # another one, for what is still free
                    return room
                waiting_since = waiting_since or clock.now_ns()
                is_patient = self._wait_for_room()
            return 0

    def _room(self) -> int | None:
        """Return how many jobs may be received now, None if no more will; the lock is held."""
        room = min(self._most_inside() - self._inside, self._plan.receive_batch)
        if self._inside > self._reserved and self._holds_too_much():
            room = 0  # what is settled makes room and wakes whoever waits here
        if self.limit is None:
            return room
        left = self.limit.left(self._context.counters.received)
        if left <= 0 and not self._in_flight:  # what is in flight may still be turned away
            return None
        return min(room, left - self._reserved)

    def _most_inside(self) -> int:
        most = 1 if self._first_is_alone else self.max_in_flight
        return min(one for one in (most, self._failing.allowed(), self._cap) if one is not None)

    def _has_enough_room(self) -> bool:
        most = self._most_inside()
        return most - self._inside >= self._refill.least(most)

    def _wait_for_room(self) -> bool:
        """Wait until there is enough room; return False where that takes too long, and less will have to do."""
        seconds = self._failing.seconds_to_try()
        has_come = self._receivers.wait(self._refill.patience_seconds if seconds is None else seconds)
        if seconds is None and self._most_inside() > self._inside:
            self._refill.note(is_late=not has_come)
        return has_come

    def _call_receiver(self) -> None:
        """Call a receiver where enough is free; the lock is held."""
        if self._receivers.parked and not self._receivers.num_called and self._has_enough_room():
            self._receivers.call()

    def received(self, jobs: Sequence[Job], room: int, called_ns: int) -> int:
        """Note what the source gave; return how many of it, the last, are beyond the run's limit.

        Args:
            jobs: What came.
            room: What was reserved for it.
            called_ns: When the source was called.
        """
        now, counters = self._context.clock.now_ns(), self._context.counters
        with self._lock:
            unix_seconds = self._context.clock.unix_seconds()
            self._book.called(room, jobs, called_ns / 1e9, now / 1e9, unix_seconds)
            counters.received += len(jobs)
            self._reserved -= room
            self._inside += len(jobs) - room
            if len(jobs) < room:
                self._call_receiver()  # what was reserved in vain
            return 0 if self.limit is None else max(0, -self.limit.left(counters.received))

    def pushed(self, jobs: Sequence[Job]) -> bool:
        """Note jobs that came by themselves; return whether they may come in."""
        now, unix_seconds = self._context.clock.now_ns() / 1e9, self._context.clock.unix_seconds()
        with self._lock:
            if not self.is_closed:
                self._book.called(len(jobs), jobs, now, now, unix_seconds)
                self._context.counters.received += len(jobs)
                self._inside += len(jobs)
            return not self.is_closed

    def enter(self, items: Sequence[Item]) -> bool:
        """Count jobs as in flight; return False where everything was given back: whoever did may not have seen these."""
        with self._lock:
            for item in items:
                self._in_flight[id(item)] = item
            if self._tasks is not None:
                for item in items:
                    self._tasks.entered(item)
            return not self.is_given_up

    def handed_on(self, blocked_seconds: float, inline_seconds: float) -> None:
        """Note what a receiver did with the jobs of a call: waiting for room in a queue, running stages itself."""
        with self._lock:
            self._book.handed_on(blocked_seconds, inline_seconds)

    def receiver_left(self) -> None:
        """Note that a receiver ends."""
        with self._lock:
            self._num_receiving -= 1
        self.attention.ring()

    def receiving(self) -> Receiving:
        """Return what the receivers did up to now."""
        with self._lock:
            return self._book.total()

    # --- called by whoever settles

    def make_room(self, items: Sequence[Item]) -> bool:
        """Let other jobs in for those whose results wait to become durable; return whether none is inside any more."""
        with self._lock:
            leaving = [item for item in items if item.inside and not item.settled]
            for item in leaving:
                item.inside = False
            self._leave(len(leaving))
            return bool(leaving) and self.is_empty

    def settle(self, items: Sequence[Item], outcome: Outcome, counter: str | None) -> list[Item]:
        """Count jobs as ended, and return those that had not ended before.

        Args:
            items: The jobs' own, not children's.
            outcome: How they ended.
            counter: What counts them, if not their outcome.
        """
        ended: list[Item] = []
        with self._lock:
            for item in items:
                if item.settled:
                    continue
                item.settled = True
                ended.append(item)
                if self._in_flight.pop(id(item), None) is not None and self._tasks is not None:
                    self._tasks.left(item)
                if self.limit is not None:
                    self.limit.settled(item.job, outcome)
            counters, name = self._context.counters, counter or _COUNTER[outcome.kind]
            setattr(counters, name, getattr(counters, name) + len(ended))
            self._leave(sum([item.inside for item in ended]))
            if self.limit is not None and not self._in_flight:
                self._receivers.call_all()  # those that have all wait for this: see `_room`
        return ended

    def note_idle(self) -> None:
        """Let the thread that called `run` know once nothing is in flight and nothing more can come."""
        if self.has_ended and not self._in_flight:
            self.idle.set()
            self.attention.ring()

    # --- called by the thread that called `run`

    def look(self) -> None:
        """Let batches go without company where no more can come, or none will unless one in flight is turned away."""
        if self.has_ended:
            return
        self._seems_over = self.has_all()
        self.has_ended = self._num_receiving == 0
        if self.has_ended or self._seems_over:
            self.wake_workers()
            self.note_idle()

    def _leave(self, num: int) -> None:
        """Let a receiver know that fewer jobs are inside; the lock is held."""
        if not num:
            return
        self._inside -= num
        if self._first_is_alone:
            self._first_is_alone = False
            self._receivers.call_all()
        else:
            self._call_receiver()

    def _holds_too_much(self) -> bool:
        return sum(station.queue.num_bytes for station in self._stations) > self._plan.max_bytes_in_flight

    def _capacity(self) -> int:
        # What the queues and the workers can hold; a fan-out's children stand for their parent.
        total = sum(
            (station.settings.queue_items or 1) + station.num_workers for station in self._stations if station.has_queue
        )
        return self._plan.max_in_flight or max(total, self._plan.receive_batch)
