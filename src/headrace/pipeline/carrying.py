"""The calls of one station that the run's one thread carries: each waits on the outside, and none needs a thread for that.

How this works: a place for one call is a worker, with the name that it would have as a thread, so that spans, statistics and
shares mean what they always do. The thread (`carriage`) has the station take as many items as places are free and begin their
calls; what has ended is handed on in one go. Who puts an item into the queue wakes the thread only while a place is free.

Nothing here waits for the next queue, or the transfers under way would stand still: what finds no room there keeps its place,
which bounds how much is in the station, and goes when the queue has room again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Protocol

from headrace.base.carrier import Carried, Carrier, Ended
from headrace.base.clock import Clock
from headrace.base.current_job import hands
from headrace.base.errors import ItemRejected, as_item_error
from headrace.base.parking import Bell
from headrace.base.policies.shares import Call
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.carried_costs import Cost
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.levers import Lever
from headrace.pipeline.passing import Passing
from headrace.pipeline.sizes import measure
from headrace.pipeline.users_code import raise_if_of_the_run
from headrace.pipeline.worker import Worker
from headrace.stages.stage import Stage


class Carries(Protocol):
    """A station, as who carries its calls sees it; see `station.Station`."""

    stages: tuple[Stage, ...]
    lever: Lever

    @property
    def most_workers(self) -> int:
        """Places that there may be now."""
        ...

    @property
    def queue(self) -> BoundedQueue:
        """Where items wait."""
        ...

    def add_place(self) -> Worker:
        """Return one place more."""
        ...

    def take_now(self, limit: int, over: Sequence[Call], bell: Bell) -> Sequence[tuple[Item, Call | None]]:
        """Return at most so many items, each with what it asks of others; see `LanedQueue.take_calls`."""
        ...


class _Passage:
    """One item in its place, from the queue to the next one.

    Args:
        began: When it was taken and its call begun, ns.
    """

    __slots__ = ("arrival", "began", "carrying", "item", "place")

    def __init__(
        self, carrying: Carrying, place: Worker, item: Item, arrival: tuple[Item, int, int], began: int
    ) -> None:
        self.carrying = carrying
        self.place = place
        self.item = item
        self.arrival = arrival
        self.began = began


class Carrying:
    """Carries the calls of one station; what is for the thread of the `Carriage` stands apart, the rest is for any thread.

    Args:
        station: Whose calls.
        passing: What happens to the items before and after.
        carried: What its stage offers.
        clock: Of the run.

    Attributes:
        is_due: Whether the thread is to see what the station has to do.
        cost: What its calls cost.
    """

    def __init__(self, station: Carries, passing: Passing, carried: Carried, clock: Clock) -> None:
        self.is_due = True
        self.cost = Cost()
        self._station = station
        self._passing = passing
        self._carried = carried
        self._clock = clock
        self._process = os.getpid()
        self._num_places = 0
        self._free: list[Worker] = []
        self._under_way: set[_Passage] = set()
        self._done: list[_Passage] = []
        self._ready: list[_Passage] = []
        self._over: list[Call] = []
        self._hung: deque[object] = deque()
        self._is_given_up = False
        self._carrier: Carrier | None = None
        self._has_left = threading.Event()
        self._has_left.set()
        self._bell = Bell(self.wake)

    def wake(self) -> None:
        """Let the thread look again."""
        self.is_due = True
        if self._carrier is not None:
            self._carrier.wake()

    def is_alive(self) -> bool:
        """Return whether a thread carries calls of the station, or will when they come."""
        return not self._has_left.is_set()

    def join(self, timeout: float) -> None:
        """Wait until the station is over, for so many seconds at most."""
        self._has_left.wait(timeout)

    def is_at_work(self, items: Sequence[Item]) -> bool:
        """Return whether the thread runs the call for these items at this moment."""
        at_work = self._carrier.at_work if self._carrier is not None else ()
        return bool(at_work) and at_work[0] is items[0]

    def cancel(self, hand: object) -> None:
        """End a call that hangs, by what its place has in hand; its job is the caller's to end."""
        self._hung.append(hand)
        self.wake()

    def give_up(self) -> None:
        """End all calls: their jobs go back to the source."""
        self._is_given_up = True
        self.wake()

    # --- in the thread

    def join_in(self, carrier: Carrier) -> None:
        """Have the thread that calls this carry the station's calls from now on."""
        self._has_left.clear()
        self._carrier = carrier
        place = self._station.add_place()
        place.begin()
        self._free.append(place)
        self._num_places = 1

    def leave(self) -> None:
        """Note that nothing more is carried."""
        self._has_left.set()

    def free_places(self, carrier: Carrier) -> None:
        """End the calls that are to be cancelled; free the places of what has ended and can be handed on."""
        self._drop_cancelled(carrier)
        if not self._done:
            return
        items = [passage.item for passage in self._done]
        free = self._passing.find_room(items, self._bell)
        if len(free) == len(items):
            self._ready, self._done = self._done, []
        else:
            going = {id(item) for item in free}
            self._ready = [passage for passage in self._done if id(passage.item) in going]
            self._done = [passage for passage in self._done if id(passage.item) not in going]
        for passage in self._ready:
            self._free_place(passage.place)

    def begin(self, carrier: Carrier) -> None:
        """Begin as many calls as there are items and places for."""
        while self._begin_calls(carrier):
            pass

    def hand_on(self) -> None:
        """Hand on what left its places; leave once no more can come."""
        ready, self._ready = self._ready, []
        if ready:
            note, process = self._passing.note, self._process
            timings, stamps = self._passing.hand_on([passage.item for passage in ready], has_room=True)
            for passage, own, left in zip(ready, timings, stamps, strict=True):
                note(passage.place.name, process, passage.began, [passage.arrival], [own], [left])
        if not (self._under_way or self._done) and self._station.queue.is_over:
            self.leave()

    def _begin_calls(self, carrier: Carrier) -> bool:
        """Begin what there are places for; return whether there may be more."""
        station = self._station
        while self._num_places < station.most_workers:
            self._free.insert(0, station.add_place())
            self._num_places += 1
        over, self._over = self._over, []
        taken = station.take_now(self._num_open(), over, self._bell)
        if not taken:
            return False
        now = self._clock.now_ns()
        wanted = self._passing.keep_wanted([item for item, _ in taken], now)
        num_unwanted = len(taken) - len(wanted)
        if num_unwanted:
            kept = set(map(id, wanted))
            self._over.extend(call for item, call in taken if call is not None and id(item) not in kept)
            taken = [pair for pair in taken if id(pair[0]) in kept]
        free, under_way, cost = self._free, self._under_way, self.cost
        for (item, call), arrival in zip(taken, self._passing.begin_tries(wanted, now), strict=True):
            place = free.pop()
            in_hand = [item]
            place.busy_since = now
            place.hand = (now, in_hand)
            place.call = call
            passage = _Passage(self, place, item, arrival, now)
            under_way.add(passage)
            hands.items = carrier.at_work = in_hand
            carrier.begin(self._call(item), passage, item.job.deadline_ns, in_hand, cost)
        return num_unwanted > 0

    def _call(self, item: Item) -> Generator[Any, Any, Any]:
        """Return the call for an item; what a user's function raises before it gives one is raised by the call."""
        if item.job.deadline_ns is not None:
            return _begin(self._carried, item)  # the deadline is to be noted first
        try:
            return self._carried(item.job, item.value)
        except BaseException as error:
            return _raise(error)

    def _num_open(self) -> int:
        """Return how many calls may begin now."""
        most = self._station.lever.most_workers
        if most is None:
            most = self._num_places - self._station.lever.num_spare
        return max(0, min(len(self._free), most - (self._num_places - len(self._free))))

    def note_ended(self, ended: Sequence[Ended], *, has_cost: bool) -> None:
        """Note how calls ended, and what they cost if that was read."""
        self.is_due = True
        under_way = self._under_way
        ended = [one for one in ended if one.token in under_way]
        left = len(ended)
        for one in ended:
            passage: _Passage = one.token
            under_way.remove(passage)
            self._done.append(passage)
            item, place, error, ended_ns = passage.item, passage.place, one.error, one.ended_ns
            place.busy_since = 0
            place.hand = None
            bytes_in = item.num_bytes
            if error is None:
                outcome = "ok"
                bytes_out, shape_key = measure(one.value)
                item.value, item.num_bytes, item.shape_key = one.value, bytes_out, shape_key
            else:
                raise_if_of_the_run(error)
                outcome, bytes_out, shape_key = "rejected" if isinstance(error, ItemRejected) else "failed", 0, None
                item.error = as_item_error(error).locate(self._station.stages[0].name, item.id)
            call = place.call
            if call is not None:
                call.is_answered = error is None
                call.ended = ended_ns / 1e9
            timing = StageTiming(0, passage.began, ended_ns, bytes_in, bytes_out, shape_key, outcome)
            if has_cost:
                timing.cpu, timing.run_delay = self.cost.share(left, ended_ns - passage.began)
                left -= 1
            item.timings.append(timing)

    def _drop_cancelled(self, carrier: Carrier) -> None:
        if not (self._hung or self._is_given_up):
            return
        hung = {id(self._hung.popleft()) for _ in range(len(self._hung))}
        for passage in list(self._under_way):
            if self._is_given_up or id(passage.place.hand) in hung:
                self._under_way.remove(passage)
                carrier.cancel(passage)
                self._passing.drop([passage.item])
                passage.place.busy_since = 0
                passage.place.hand = None
                self._free_place(passage.place)

    def _free_place(self, place: Worker) -> None:
        if place.call is not None:
            self._over.append(place.call)
            place.call = None
        self._free.append(place)


def _begin(carried: Carried, item: Item) -> Generator[Any, Any, Any]:
    return (yield from carried(item.job, item.value))


def _raise(error: BaseException) -> Generator[Any, Any, Any]:
    yield from ()  # which makes it a call
    raise error
