"""The queue before a station that waits on many others: a lane for each, so that one that hangs holds up only its own.

How this works: items for one server or receiver form a lane, in order; workers take from the lanes in turn, as far as
`policies.shares` lets them, and never take items of two together. A lane whose calls take long has places of its own, and may
fill its part of the queue. What comes beyond is turned away: its job goes back to the source, which offers it again later as if
it was new. Where the source cannot do that, and while one lane alone comes, a full queue makes producers wait like any other.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace.base.clock import Clock
from headrace.base.parking import Bell
from headrace.base.policies.shares import Call, Shares, Turn
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.item import Item
from headrace.pipeline.two_lines import IN_A_ROW, TwoLines
from headrace.pipeline.users_code import raise_if_of_the_run

#: Least and most that a job which is turned away waits; in between, as long as its lane has been slow.
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 300.0

#: Returns what an item goes to, and the group that belongs to; see `policies.shares`.
GoesTo = Callable[[Item], tuple[str, str]]


class _Lanes:
    """Items by lane; the lanes take turns, but what is urgent has its lane taken next, as often as `two_lines` allows."""

    def __init__(self) -> None:
        self.by_name: OrderedDict[str, deque[tuple[str, Item]] | TwoLines[tuple[str, Item]]] = OrderedDict()
        self.num = 0
        """Items in all lanes."""
        self._num_before = 0
        """Lanes that were put before the others since one had its turn for what is not urgent."""

    def __len__(self) -> int:
        return self.num

    def add(self, lane: str, key: str, item: Item) -> None:
        """Add an item at the end of its lane."""
        waiting = self.by_name.setdefault(lane, deque())
        if not item.job.priority:
            if isinstance(waiting, deque):
                waiting = self.by_name[lane] = TwoLines(waiting, _is_urgent)
            if self._num_before < IN_A_ROW:
                self._num_before += 1
                self.by_name.move_to_end(lane, last=False)
        waiting.append((key, item))
        self.num += 1

    def pop_from(self, lane: str, limit: int) -> tuple[str, list[Item]]:
        """Take the first items of a lane that have one key; its next turn comes after the others'."""
        waiting = self.by_name[lane]
        key, item = waiting.popleft()
        if item.job.priority:
            self._num_before = 0
        items = [item]
        while waiting and len(items) < limit and waiting[0][0] == key:
            items.append(waiting.popleft()[1])
        if waiting:
            self.by_name.move_to_end(lane)
        else:
            del self.by_name[lane]
        self.num -= len(items)
        return key, items

    def pop_first(self, lane: str) -> tuple[str, Item]:
        """Take the first item of a lane, with its key; see `pop_from`."""
        by_name = self.by_name
        waiting = by_name[lane]
        first = waiting.popleft()
        if first[1].job.priority:
            self._num_before = 0
        if not waiting:
            del by_name[lane]
        elif len(by_name) > 1:
            by_name.move_to_end(lane)
        self.num -= 1
        return first

    def popleft(self) -> Item:
        """Take any item."""
        return self.pop_first(next(iter(self.by_name)))[1]

    def newest(self) -> list[Item]:
        """Return all items, the newest first."""
        waiting = [item for lane in self.by_name.values() for _, item in lane]
        return sorted(waiting, key=_arrival, reverse=True)

    def remove(self, gone: Collection[Item]) -> None:
        """Take out these."""
        for lane, waiting in list(self.by_name.items()):
            kept = deque(entry for entry in waiting if entry[1] not in gone)
            self.num -= len(waiting) - len(kept)
            if kept:
                self.by_name[lane] = kept
            else:
                del self.by_name[lane]


class LanedQueue(BoundedQueue):
    """A bounded queue with lanes; thread-safe.

    Args:
        capacity: Bound in items, >= 1.
        capacity_bytes: Bound in bytes; one larger item passes alone.
        clock: Stamps arrivals.
        num_workers: Workers that live on this queue.
        goes_to: What an item goes to.
        turn_away: Called with an item that finds no room in its lane, and the seconds after which it is to come again.
        may_turn_away: Whether that may be done with an item; others wait for room in the queue.
    """

    def __init__(
        self,
        capacity: int,
        capacity_bytes: int,
        clock: Clock,
        num_workers: int,
        goes_to: GoesTo,
        turn_away: Callable[[Item, float], object],
        may_turn_away: Callable[[Item], bool],
    ) -> None:
        super().__init__(capacity, capacity_bytes, clock)
        self._lanes = _Lanes()
        self._items: Any = self._lanes  # the rest of the queue only asks how many there are, and takes any
        self._shares = Shares(num_workers)
        self._num_workers = num_workers
        self._goes_to = goes_to
        self._turn_away = turn_away
        self._may_turn_away = may_turn_away
        self._most_parked = max(1, capacity // 2)

    def put(self, items: Sequence[Item], *, force: bool = False, has_room: bool = False) -> list[int]:
        """Add items in order, waiting while the queue is full; see `BoundedQueue.put`. Some may be turned away instead."""
        stamps: list[int] = []
        num_new = 0
        turned_away: list[tuple[Item, float]] = []
        goes_to, shares, lanes = self._goes_to, self._shares, self._lanes
        addressed = [(item, goes_to(item)) for item in items]
        with self._lock:
            stamp = self._now_ns()
            for item, (key, group) in addressed:
                lane = shares.lane(key, group)
                shares.note_arrival(lane, stamp / 1e9)
                is_refused = False
                while not (force or self._closed):
                    seconds = None if shares.slow_since(lane) is None else self._refused_for(lane, item, stamp / 1e9)
                    if seconds is not None:
                        turned_away.append((item, seconds))
                        is_refused = True
                        break
                    if has_room or self._has_room(lanes.num, item.num_bytes):
                        break
                    self._peak = max(self._peak, lanes.num)
                    self._wait_for_room(num_new)
                    num_new = 0
                    stamp = self._now_ns()
                item.arrived = stamp
                stamps.append(stamp)
                if is_refused:
                    continue
                item.queue_depth = lanes.num
                lanes.add(lane, key, item)
                self._bytes += item.num_bytes
                num_new += 1
            self._peak = max(self._peak, lanes.num)
            self._call_consumers(num_new)
        for item, seconds in turned_away:
            self._turn_away(item, seconds)
        return stamps

    def take_for(self, limit: int, before: Call | None) -> tuple[list[Item], Call | None]:
        """Return 1 to limit items for one key, waiting for the first, and the call that the taker makes for them.

        [] once the queue is closed and empty.

        Args:
            limit: At most so many.
            before: The taker's last call, which ends here: it has handed on what it brought.
        """
        with self._lock:
            if before is not None:
                self._shares.end(before, self._now_ns() / 1e9)
            while True:
                now = self._now_ns() / 1e9
                self._shares.look(now)
                lane = self._next_lane(now)
                if lane is not None:
                    fair = -(-len(self._lanes) // self._num_workers)
                    key, items = self._lanes.pop_from(lane, min(limit, fair))
                    self._note_taken(items)
                    if len(self._lanes):
                        self._consumers.call()  # what this call ended, or what time has changed, may let another begin
                    return items, self._shares.begin(lane, key, now)
                if self._closed and not len(self._lanes):
                    return [], None
                self._consumers.wait()

    def take_calls(self, limit: int, over: Sequence[Call], bell: Bell) -> list[tuple[Item, Call]]:
        """Return the items whose calls may begin now, each with its call, without waiting for any.

        Args:
            limit: At most so many.
            over: Calls that end here: what they brought was handed on.
            bell: Rung once more may begin, or the queue is closed.
        """
        with self._lock:
            shares, lanes = self._shares, self._lanes
            self._consumers.come(bell)
            now = self._now_ns() / 1e9
            for call in over:
                shares.end(call, now)
            shares.look(now)
            begun: list[tuple[Item, Call]] = []
            while len(begun) < limit and (lane := self._next_lane(now)) is not None:
                key, item = lanes.pop_first(lane)
                begun.append((item, shares.begin(lane, key, now)))
                self._bytes -= item.num_bytes
            if self._producers.parked:
                self._make_room()
            if len(begun) < limit:
                self._consumers.leave(bell)
            return begun

    def remove_newest(self, count: int, may_go: Callable[[Item], bool]) -> list[Item]:
        """Take out at most so many of those that may go, the newest first, and return them."""
        with self._lock:
            gone = [item for item in self._lanes.newest() if may_go(item)][:count]
            self._lanes.remove(set(gone))
            self._note_taken(gone)
        return gone

    def end(self, call: Call) -> None:
        """Take back the place of a call whose worker was left behind."""
        with self._lock:
            self._shares.end(call, self._now_ns() / 1e9)
            self._consumers.call()

    def look(self) -> None:
        """See which calls turn out to take long, and let a worker see what may begin; to be called often."""
        with self._lock:
            now = self._now_ns() / 1e9
            self._shares.look(now)
            too_many = self._find_too_many(now)
            if too_many:
                self._lanes.remove({item for item, _ in too_many})
                self._note_taken([item for item, _ in too_many])
            if len(self._lanes):
                self._consumers.call()
        for item, seconds in too_many:
            self._turn_away(item, seconds)

    def limit_parked(self, most: int) -> None:
        """Let slow lanes have no more than so many items waiting, and as many in hand, of those that may be in flight."""
        self._most_parked = max(1, min(self._capacity // 2, most))
        self._shares.num_slow_places = min(self._num_workers, self._most_parked)

    @property
    def num_slow(self) -> int:
        """Calls that take long now; without the lock, for those who only want to know how many there are."""
        return self._shares.num_slow

    @property
    def num_moved(self) -> int:
        """Calls that turned out to take long, so far."""
        return self._shares.num_moved

    def num_parked(self) -> int:
        """Return how many items wait in slow lanes."""
        with self._lock:
            return self._parked()

    def _has_room(self, depth: int, num_bytes: int) -> bool:
        return not depth or (depth < self._capacity and self._bytes + num_bytes <= self._capacity_bytes)

    def _parked(self) -> int:
        return sum(len(self._lanes.by_name[lane]) for lane in self._slow_lanes())

    def _parked_bytes(self) -> int:
        return sum(item.num_bytes for lane in self._slow_lanes() for _, item in self._lanes.by_name[lane])

    def _slow_lanes(self) -> list[str]:
        return [lane for lane in self._lanes.by_name if self._shares.slow_since(lane) is not None]

    def _find_too_many(self, now: float) -> list[tuple[Item, float]]:
        """Return what came before its lane was known to be slow and finds no room now, and for how long it is turned away."""
        too_many = self._parked() - self._most_parked
        if too_many <= 0 or self._shares.is_alone(now):
            return []
        waiting = [(item, lane) for lane in self._slow_lanes() for _, item in self._lanes.by_name[lane]]
        waiting.sort(key=lambda entry: _arrival(entry[0]), reverse=True)
        away = [entry for entry in waiting if self._may_turn_away(entry[0])][:too_many]
        return [(item, self._pause_of(lane, now)) for item, lane in away]

    def _pause_of(self, lane: str, now: float) -> float:
        """Return for how long what is turned away from a slow lane is to wait."""
        return min(_MOST_SECONDS, max(_LEAST_SECONDS, now - (self._shares.slow_since(lane) or now)))

    def _make_room(self) -> None:
        # What is parked stays for long: producers wait until half of what it leaves is free, or they would wait as long.
        parked, num_parked_bytes = self._parked(), self._parked_bytes()
        if (
            len(self._lanes) - parked <= (self._capacity - parked) // 2
            and self._bytes - num_parked_bytes <= (self._capacity_bytes - num_parked_bytes) // 2
        ):
            self._producers.call_all()

    def _refused_for(self, lane: str, item: Item, now: float) -> float | None:
        """Return for how long an item is turned away; None: it is not."""
        if self._shares.slow_since(lane) is None or not self._may_turn_away(item) or self._shares.is_alone(now):
            return None
        waiting = len(self._lanes.by_name.get(lane, ()))
        # As much as is still free: a second slow lane finds room, and so does a third.
        has_room = waiting < max(1, self._most_parked - self._parked())
        if has_room and self._bytes + item.num_bytes <= self._capacity_bytes // 2:
            return None
        return self._pause_of(lane, now)

    def _next_lane(self, now: float) -> str | None:
        last = None
        for lane in self._lanes.by_name:
            turn = Turn.NOW if self._closed else self._shares.turn(lane, now)
            if turn is Turn.NOW:
                return lane
            if turn is Turn.LAST and last is None:
                last = lane
        return last


def addressed_by(function: Callable[[Any, Any], tuple[str, str]]) -> GoesTo:
    """Return what asks a stage where an item goes; what its function cannot tell goes nowhere in particular."""
    return functools.partial(_ask, function)


def _ask(function: Callable[[Any, Any], tuple[str, str]], item: Item) -> tuple[str, str]:
    try:
        key, group = function(item.job, item.value)
    except BaseException as error:  # an address that is none, or not even text: the call itself will say so
        raise_if_of_the_run(error)
        return "", ""
    return (key, group) if isinstance(key, str) and isinstance(group, str) else ("", "")


def _arrival(item: Item) -> tuple[int, int]:
    """Return what tells the order of arrival; those that were put together have one time."""
    return item.arrived, item.queue_depth


def _is_urgent(entry: tuple[str, Item]) -> bool:
    return not entry[1].job.priority
