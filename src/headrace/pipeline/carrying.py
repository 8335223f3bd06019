"""One thread that carries the calls of a station: each waits on the outside, and none needs a thread for that.

How this works: a place for one call is a worker, with the name that it would have as a thread, so that spans, statistics and
shares mean what they always do. The thread takes as many items as places are free, begins their calls, and waits until some
have ended; what has ended is handed on in one go. Who puts an item into the queue wakes it only while a place is free.

It never waits for the next queue, or the transfers under way would stand still: what finds no room there keeps its place, which
bounds how much is in the station, and goes when the queue has room again. What a call cost is not known for itself: the CPU
time of the thread while it carried is divided evenly among the calls that ended then, so that the sum is right.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.base.carrier import Carried, Ended
from headrace.base.clock import Clock
from headrace.base.errors import ItemRejected, as_item_error
from headrace.base.metering import Metering, Reading, ThreadMeter
from headrace.base.parking import Bell
from headrace.base.policies.shares import Call
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.sizes import measure
from headrace.pipeline.users_code import raise_if_of_the_run
from headrace.stages.stage import Stage


class Place(Protocol):
    """A worker, as who carries its calls sees it; see `station.Worker`."""

    name: str
    busy_since: int
    hand: tuple[int, list[Item]] | None
    call: Call | None


class Carries(Protocol):
    """A station, as who carries its calls sees it; see `station.Station`."""

    stages: tuple[Stage, ...]

    @property
    def most_workers(self) -> int:
        """Places that there may be now."""
        ...

    @property
    def queue(self) -> BoundedQueue:
        """Where items wait."""
        ...

    def add_place(self) -> Place:
        """Return one place more."""
        ...

    def take_now(self, limit: int, over: Sequence[Call], bell: Bell) -> Sequence[tuple[Item, Call | None]]:
        """Return at most so many items, each with what it asks of others; see `LanedQueue.take_calls`."""
        ...

    def keep_wanted(self, items: Sequence[Item], now: int) -> list[Item]:
        """Return the items that are still wanted; the others have ended."""
        ...

    def begin_tries(self, items: Sequence[Item], now: int) -> list[tuple[Item, int, int]]:
        """Note that items begin; return each, when the queue took it (ns), and how many were in the queue then."""
        ...

    def find_room(self, items: Sequence[Item], bell: Bell) -> list[Item]:
        """Return the items that can be handed on now; the bell is rung once there is room for more."""
        ...

    def hand_on(self, items: Sequence[Item]) -> tuple[list[list[StageTiming]], list[int]]:
        """Send items on their way; return the passages of each, and when it left (ns)."""
        ...

    def drop(self, items: Sequence[Item]) -> None:
        """Note that nothing more is done with items, whose jobs others have ended."""
        ...

    def note(
        self,
        worker: str,
        process_id: int,
        dequeued: int,
        arrivals: list[tuple[Item, int, int]],
        timings: list[list[StageTiming]],
        left: list[int],
    ) -> None:
        """Leave a note of which spans are made; see `WorkNote`."""
        ...


@dataclass(slots=True, eq=False)
class _Passage:
    """One item in its place, from the queue to the next one."""

    place: Place
    item: Item
    arrival: tuple[Item, int, int]
    began: int
    """When it was taken and its call begun, ns."""


class Carrying:
    """Carries the calls of one station; `work` is its thread, all else may be called from any.

    Args:
        station: Whose calls.
        carried: What its stage offers.
        clock: Of the run.
        metering: Whether to read what the calls cost the thread.
    """

    def __init__(self, station: Carries, carried: Carried, clock: Clock, metering: Metering) -> None:
        self._station = station
        self._carried = carried
        self._carrier = carried.carrier()
        self._clock = clock
        self._metering = metering
        self._meter = ThreadMeter(clock.now_ns)
        self._cost = _Cost()
        self._process = os.getpid()
        self._num_places = 0
        self._free: list[Place] = []
        self._under_way: set[_Passage] = set()
        self._done: list[_Passage] = []
        self._over: list[Call] = []
        self._hung: deque[object] = deque()
        self._is_given_up = False
        self._bell = Bell(self._carrier.wake)

    def work(self) -> None:
        """Carry calls until the station is over."""
        try:
            while True:
                self._drop_cancelled()
                self._hand_on_done()
                before = self._meter.read() if self._metering.on else None
                while self._begin_calls():
                    pass
                if not (self._under_way or self._done) and self._station.queue.is_over:
                    return
                ended = self._carrier.wait(None)
                if before is None:
                    self._cost.forget()
                else:
                    self._cost.add(before, self._meter.read())
                self._note_ended(ended)
        finally:
            self._carrier.close()
            self._meter.close()

    def wake(self) -> None:
        """Let the thread look again."""
        self._carrier.wake()

    def cancel(self, hand: object) -> None:
        """End a call that hangs, by what its place has in hand; its job is the caller's to end."""
        self._hung.append(hand)
        self.wake()

    def give_up(self) -> None:
        """End all calls: their jobs go back to the source."""
        self._is_given_up = True
        self.wake()

    # --- in the thread

    def _begin_calls(self) -> bool:
        """Begin what there are places for; return whether there may be more."""
        station = self._station
        while self._num_places < station.most_workers:
            self._free.insert(0, station.add_place())
            self._num_places += 1
        over, self._over = self._over, []
        taken = station.take_now(len(self._free), over, self._bell)
        if not taken:
            return False
        now = self._clock.now_ns()
        calls = {id(item): call for item, call in taken}
        wanted = station.keep_wanted([item for item, _ in taken], now)
        for item, arrival in zip(wanted, station.begin_tries(wanted, now), strict=True):
            place = self._free.pop()
            place.busy_since = now
            place.hand = (now, [item])
            place.call = calls.pop(id(item))
            passage = _Passage(place, item, arrival, now)
            self._under_way.add(passage)
            self._carrier.begin(_begin(self._carried, item), passage, item.job.deadline_ns, (item,))
        self._over.extend(call for call in calls.values() if call is not None)
        return len(wanted) < len(taken)

    def _note_ended(self, ended: Sequence[Ended]) -> None:
        ended = [one for one in ended if one.token in self._under_way]
        if not ended:
            return
        for left, one in zip(range(len(ended), 0, -1), ended, strict=True):
            passage: _Passage = one.token
            self._under_way.remove(passage)
            self._done.append(passage)
            item, place = passage.item, passage.place
            place.busy_since = 0
            place.hand = None
            bytes_in, bytes_out, shape_key = item.num_bytes, 0, None
            if one.error is None:
                bytes_out, shape_key = measure(one.value)
                item.value, item.num_bytes, item.shape_key = one.value, bytes_out, shape_key
            else:
                raise_if_of_the_run(one.error)
                item.error = as_item_error(one.error).locate(self._station.stages[0].name, item.id)
            if place.call is not None:
                place.call.is_answered = one.error is None
                place.call.ended = one.ended_ns / 1e9
            outcome = _outcome(one.error)
            cpu, run_delay = self._cost.share(left, one.ended_ns - passage.began)
            item.timings.append(
                StageTiming(
                    *(0, passage.began, one.ended_ns, bytes_in, bytes_out, shape_key, outcome),
                    cpu=cpu,
                    run_delay=run_delay,
                )
            )

    def _hand_on_done(self) -> None:
        """Hand on what finds room, and free its places."""
        if not self._done:
            return
        items = [passage.item for passage in self._done]
        going = {id(item) for item in self._station.find_room(items, self._bell)}
        ready = [passage for passage in self._done if id(passage.item) in going]
        if not ready:
            return
        self._done = [passage for passage in self._done if id(passage.item) not in going]
        timings, stamps = self._station.hand_on([passage.item for passage in ready])
        for passage, own, left in zip(ready, timings, stamps, strict=True):
            place = passage.place
            self._station.note(place.name, self._process, passage.began, [passage.arrival], [own], [left])
            self._free_place(place)

    def _drop_cancelled(self) -> None:
        if not (self._hung or self._is_given_up):
            return
        hung = {id(self._hung.popleft()) for _ in range(len(self._hung))}
        for passage in list(self._under_way):
            if self._is_given_up or id(passage.place.hand) in hung:
                self._under_way.remove(passage)
                self._carrier.cancel(passage)
                self._station.drop([passage.item])
                passage.place.busy_since = 0
                passage.place.hand = None
                self._free_place(passage.place)

    def _free_place(self, place: Place) -> None:
        if place.call is not None:
            self._over.append(place.call)
            place.call = None
        self._free.append(place)


def _begin(carried: Carried, item: Item) -> Generator[Any, Any, Any]:
    # A generator around the stage's own: what a user's `call` raises before it gives one ends the item and not the run.
    return (yield from carried.call(item.job, item.value))


class _Cost:
    """What the thread used and was kept waiting for a core, ns, and was not given to a call yet."""

    def __init__(self) -> None:
        self._cpu: int | None = None
        self._run_delay: int | None = None

    def add(self, before: Reading, after: Reading) -> None:
        """Add what went by between two readings."""
        self._cpu = _sum(self._cpu, before[1], after[1])
        self._run_delay = _sum(self._run_delay, before[2], after[2])

    def forget(self) -> None:
        """Leave out what was not given to a call yet, as clocks are not read now: nothing is known, which is not zero."""
        self._cpu = self._run_delay = None

    def share(self, count: int, most: int) -> tuple[int | None, int | None]:
        """Return CPU time and run-queue delay of the next of so many calls, together no more than it lasted, ns.

        The rest is for those after it. None where nothing was read.
        """
        cpu = None if self._cpu is None else min(self._cpu // count, most)
        run_delay = None if self._run_delay is None else min(self._run_delay // count, most - (cpu or 0))
        if self._cpu is not None and cpu is not None:
            self._cpu -= cpu
        if self._run_delay is not None and run_delay is not None:
            self._run_delay -= run_delay
        return cpu, run_delay


def _sum(known: int | None, before: int | None, after: int | None) -> int | None:
    return known if before is None or after is None else (known or 0) + after - before


def _outcome(error: BaseException | None) -> str:
    return "ok" if error is None else "rejected" if isinstance(error, ItemRejected) else "failed"
