"""Sends items on their way: to the next station, to another try, through a fan-out and its join, or to the end.

How this works: a worker that has run its stages calls `hand_on`, and puts the items into the next queue itself. What is to be
tried again waits here until `bring_back` finds that its pause is over.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from typing import Any

from headrace.base.errors import StageFailed, as_item_error
from headrace.base.parking import Bell
from headrace.pipeline.admission import Admission
from headrace.pipeline.item import Item, Stop
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.settling import Settling, drop_frames
from headrace.pipeline.sizes import measure
from headrace.pipeline.station import Station, pause
from headrace.pipeline.task_shares import TaskShares
from headrace.pipeline.users_code import raise_if_of_the_run
from headrace.stages.stage import Fan, Joined


class Router:
    """Moves the items of one run; thread-safe.

    Args:
        context: Of the run.
        admission: Says whether everything is given back.
        settling: Ends jobs.
        tasks: Says which queues take items beyond their bound; None where there is one task.
    """

    def __init__(
        self,
        context: RunContext,
        admission: Admission,
        settling: Settling,
        tasks: TaskShares | None,
    ) -> None:
        self._clock = context.clock
        self._admission = admission
        self._settling = settling
        self._tasks = tasks
        self._retries: list[tuple[float, int, Item, Station]] = []
        self._retry_lock = threading.Lock()
        self._join_lock = threading.Lock()

    def hand_on(self, station: Station, items: Sequence[Item], has_room: bool) -> list[int]:
        """Send items that went through a station on their way, and return when each left it (ns), in order.

        Args:
            station: Which the items leave.
            items: That went through it.
            has_room: Do not wait for room: `find_room` has found it.
        """
        now = self._clock.now_ns()
        stamps = [now] * len(items)
        onward: list[tuple[int, Item]] = []
        delivered: list[Item] = []
        for index, item in enumerate(items):
            if (item if item.parent is None else item.root).settled:  # a call less for most items
                continue
            if item.error is not None:
                self._retry_or_fail(item, station)
            elif station.last_role == "deliver":
                delivered.append(item)
            elif station.last_role == "fan_out":
                stamps[index] = self._fan_out(item, has_room)
            else:
                onward.append((index, item))
        if delivered:
            self._settling.hand_over(delivered)
        if onward:
            for (index, _), stamp in zip(onward, self._move([item for _, item in onward], has_room), strict=True):
                stamps[index] = stamp
        return stamps

    def find_room(self, station: Station, items: Sequence[Item], bell: Bell) -> list[Item]:
        """Return the items that `hand_on` need not wait with.

        Args:
            station: Which the items leave; its last stage maps or delivers.
            items: That went through it.
            bell: Rung once there is room for more; with a lock held, so it is to be short.
        """
        if station.last_role == "deliver":
            return list(items)
        free: list[Item] = []
        onward: dict[Stop, list[Item]] = {}
        for item in items:
            if item.error is not None or item.root.settled:
                free.append(item)
            else:
                onward.setdefault(item.route[item.position + 1], []).append(item)
        for after, some in onward.items():
            free += some if self.is_let_in(after) else some[: after.queue.find_room(some, bell)]
        return free

    def put(self, station: Stop, items: list[Item], has_room: bool = False) -> list[int]:
        """Put items into a station's queue, waiting for room if it was not found, and return when each was taken in (ns)."""
        if station.runs_in_place:
            return station.run_in_place(items)
        if station.reorderer is not None:
            # Here and not when they are let go, which may be by somebody who must not wait: see `Reorderer`.
            if not has_room:
                station.queue.wait_for_room()
            pushed = self._clock.now_ns()
            station.reorderer.push(items)
            # Those it let go have arrived in the queue since; the others left the worker when they were pushed.
            return [max(pushed, item.arrived) for item in items]
        return station.queue.put(items, force=self.is_let_in(station), has_room=has_room)

    def is_let_in(self, station: Stop) -> bool:
        """Return whether what goes to a station was let in for it, so that nobody need wait for room; see `TaskShares`."""
        return self._tasks is not None and self._tasks.begins_own(station)

    def bring_back(self) -> None:
        """Put items whose pause before another try is over back into their queues."""
        now = self._clock.now_ns() / 1e9
        while self._retries and self._retries[0][0] <= now:
            with self._retry_lock:
                _, _, item, station = heapq.heappop(self._retries)
            station.queue.put([item], force=True)

    # --- to the next station

    def _move(self, items: list[Item], has_room: bool) -> list[int]:
        """Put items into the next stations of their routes; return the stamps in the order of the items."""
        first = items[0]
        station = first.route[first.position + 1]
        if _go_together(items):
            for item in items:  # as `step_to`, which would be a call for each
                item.entry = None
                item.tries = 0
                item.position += 1
            return self.put(station, items, has_room)
        return self._move_apart(items, has_room)

    def _move_apart(self, items: list[Item], has_room: bool) -> list[int]:
        stamps = [0] * len(items)
        by_station: dict[Stop, list[int]] = {}
        for index, item in enumerate(items):
            item.step_to(item.position + 1)
            station = item.route[item.position]
            if station.stages[0].role == "join" and item.parent is not None:
                stamps[index] = self._gather(item, item.parent, has_room)
            else:
                by_station.setdefault(station, []).append(index)
        for station, indices in by_station.items():
            moved = self.put(station, [items[index] for index in indices], has_room)
            for index, stamp in zip(indices, moved, strict=True):
                stamps[index] = stamp
        return stamps

    # --- to another try

    def _retry_or_fail(self, item: Item, station: Station) -> None:
        error = item.error
        if error is None:
            raise RuntimeError("nothing failed")
        delay = None if self._admission.is_given_up else station.retry_delay(item)
        if delay is None:
            self._settling.fail(item, error, station.name)
            return
        drop_frames(error)
        if item.entry is not None:
            # The flight with the value: one that began here passes stages by whose result is given up with it.
            item.value, item.num_bytes, item.shape_key, item.flight = item.entry
        if station.retries_in_place:
            pause(delay)  # the worker tries again itself
            return
        item.error = None
        with self._retry_lock:
            due = self._clock.now_ns() / 1e9 + delay
            heapq.heappush(self._retries, (due, id(item), item, station))

    # --- through a fan-out and its join

    def _fan_out(self, parent: Item, has_room: bool) -> int:
        fan = parent.value
        try:
            values = _children_of(fan)
        except BaseException as error:  # of the user's objects
            raise_if_of_the_run(error)
            self._settling.fail(parent, as_item_error(error), parent.route[parent.position].stages[-1].name)
            return self._clock.now_ns()
        parent.keep = fan.keep
        parent.pending = len(values)
        parent.gathered = [None] * parent.pending
        parent.value = None
        if parent.pending == 0:
            return self._all_gathered(parent, _join_position(parent.route, parent.position), has_room)
        # One step before their first station: `_move` makes that step.
        return self._move([parent.child(value, index) for index, value in enumerate(values)], has_room)[-1]

    def _gather(self, child: Item, parent: Item, has_room: bool) -> int:
        with self._join_lock:
            parent.gathered[child.child_index] = child.value
            parent.pending -= 1
            complete = parent.pending == 0
        return self._all_gathered(parent, child.position, has_room) if complete else self._clock.now_ns()

    def _all_gathered(self, parent: Item, position: int, has_room: bool) -> int:
        # Not by _move: there an item that comes to a join is a child, and this one may be a child of another fan-out.
        parent.num_bytes = measure(parent.gathered)[0] + measure(parent.keep)[0]
        parent.shape_key = None
        parent.value = Joined(parent.keep, parent.gathered)
        parent.keep, parent.gathered = None, []
        parent.step_to(position)
        return self.put(parent.route[position], [parent], has_room)[0]


def _go_together(items: list[Item]) -> bool:
    """Return whether all are jobs of one route at one station of it."""
    route, position = items[0].route, items[0].position
    for item in items:  # noqa: SIM110 - all() would cost a call for each
        if item.parent is not None or item.position != position or item.route is not route:
            return False
    return True


def _children_of(fan: Any) -> list[Any]:
    """Return what a fan-out cut; raises what the user's objects raise, and StageFailed where there is nothing to cut."""
    if not isinstance(fan, Fan) or not hasattr(fan.children, "__len__"):
        got = f"Fan({type(fan.children).__name__}, ...)" if isinstance(fan, Fan) else type(fan).__name__
        raise StageFailed(f"a fan_out stage must return headrace.Fan(list of children, keep), got {got}")
    return list(fan.children)  # as many as there are: a length may say something else


def _join_position(route: tuple[Stop, ...], position: int) -> int:
    """Return the index of the station that begins with the join of the fan-out at `position`."""
    depth = 1
    for index in range(position + 1, len(route)):
        for stage in route[index].stages:
            depth += {"fan_out": 1, "join": -1}.get(stage.role, 0)
            if stage.role == "join" and depth == 0:
                return index
    raise RuntimeError("the pipeline's check lets no fan_out without a join through")
