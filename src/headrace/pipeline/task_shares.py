"""Keeps a slow task from holding up the others that share its receivers and workers.

How this works: a shared worker that has an item for a task whose queue is full would wait there, and with it everybody's items.
So receivers let no job of a task in while the first station of its own is full (`policies.task_turns` says whether they wait or
give the job back), and what is on its way to that station by then goes in beyond its bound: no more than the shared stations
hold.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from headrace.base.clock import Clock
from headrace.base.errors import Crowded
from headrace.base.policies.task_turns import TaskTurns
from headrace.pipeline.item import Item, Stop
from headrace.pipeline.station import Station

#: How soon a receiver that waits sees that there is room.
_POLL_SECONDS = 0.002


class TaskShares:
    """The tasks of one run.

    Args:
        routes: The stations that each task's jobs pass.
        clock: The run's.
        max_in_flight: Returns how many jobs may be in flight now.
        turn_away: Called with an item that is to be offered again later, and why.
    """

    def __init__(
        self,
        routes: Mapping[str, tuple[Station, ...]],
        clock: Clock,
        max_in_flight: Callable[[], int],
        turn_away: Callable[[Item, Crowded, str], object],
    ) -> None:
        self.counts: dict[str, int] = {}
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._turn_away = turn_away
        uses = Counter(station for route in set(routes.values()) for station in set(route))
        first_own = {
            task: next((station for station in route if station.has_queue and uses[station] == 1), None)
            for task, route in routes.items()
        }
        self._first_own = {task: station for task, station in first_own.items() if station is not None}
        self._stations = set(self._first_own.values())
        self._inside: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        """Those of them that receivers hold: if they counted, receivers would wait for one another."""
        self._turns = TaskTurns()
        self._lock = threading.Lock()

    @property
    def is_of_use(self) -> bool:
        """Whether there are several tasks with stations of their own."""
        return len(self._first_own) > 1

    def begins_own(self, station: Stop) -> bool:
        """Return whether a station is the first of one task alone: others' workers put into it, and must not wait."""
        return station in self._stations

    def entered(self, item: Item) -> None:
        """Note that a job is in flight; the lock of `Admission` is held, here and in `left`."""
        self._inside[item.job.task] += 1

    def left(self, item: Item) -> None:
        """Note that a job is no longer in flight."""
        self._inside[item.job.task] -= 1

    def let_in(self, item: Item, before_waiting: Callable[[], object]) -> bool:
        """Wait until a job may go in, and return True; or give it back to its source and return False.

        Args:
            item: What was received.
            before_waiting: Sends those on their way that were let in before: else this one might wait for them.
        """
        task = item.job.task
        if task not in self._first_own:
            return True
        with self._lock:
            self._turns.came(task, self._clock.now_ns() / 1e9)
            self._waiting[task] += 1
        is_let_in = False
        try:
            while not item.settled:  # it is where a run is given up
                seconds = self._seconds_away(task)
                is_let_in = seconds == 0
                if is_let_in:
                    return True
                if seconds is not None and item.job.may_wait:
                    self._give_back(item, seconds)
                    return False
                before_waiting()
                time.sleep(_POLL_SECONDS)
            return False
        finally:
            if not is_let_in:
                with self._lock:
                    self._waiting[task] -= 1

    def _give_back(self, item: Item, seconds: float) -> None:
        self.counts["route.turned_away"] = self.counts.get("route.turned_away", 0) + 1
        error = Crowded(
            f"share.full: task {item.job.task!r} has its share of what may be in flight, and other tasks lack work; it is "
            "offered again later"
        )
        error.retry_after_seconds = seconds
        self._turn_away(item, error, "route")

    def _seconds_away(self, task: str) -> float | None:
        """Return when a job of a task may go in; if that is now (0), it is no longer among those that wait."""
        with self._lock:
            now = self._clock.now_ns() / 1e9
            num_active = self._turns.num_active(now)
            # One task alone may have everything that is in flight; its queue is bounded all the same.
            share = max(1, self._max_in_flight() // num_active) if num_active > 1 else math.inf
            levels = {
                other: max(station.queue.fill_ratio, (self._inside[other] - self._waiting[other]) / share)
                for other, station in self._first_own.items()
            }
            seconds = self._turns.seconds_away(task, levels, now)
            self._waiting[task] -= seconds == 0
            return seconds
