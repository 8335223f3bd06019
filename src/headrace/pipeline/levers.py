"""What an experiment may change of a run while it goes on, for short stretches, and how it is all undone; and what caps a run.

How this works: each station has a lever, and the receivers have one. Workers look at theirs before they take items: one
whose number is too high waits at the lever until it is let go. After the work a worker sleeps off what it owes for its
items, in pieces that a sleep can be exact about. At rest each look is one comparison. The thread that experiments sets
levers; `Levers.end` lets everything go and lets nothing be set any more. The runtime calls it before anything else when a
run is stopped, gives up or closes, so that no worker is parked where it is to leave.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: A sleep shorter than this takes longer than it says; what is owed waits until it comes to so much.
_LEAST_SLEEP = 0.001


class Lever:
    """What may be changed of one station, or of the receivers.

    Args:
        name: Of the station.
        changed: Called when workers that wait elsewhere are to look again.

    Attributes:
        name: Of the station.
        delay_seconds: What a worker sleeps for each item that it has served, >= 0.
        most_items: The largest batch; None: the Plan's.
        num_spare: Workers or places beyond the Plan's; they work only while `most_workers` lets them.
        passed: Called with the items that leave the station, in the thread that hands them on; None: nobody asks.
        cap_items: The largest batch that whoever caps the station allows; None: nobody caps it.
    """

    def __init__(self, name: str, changed: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.delay_seconds = 0.0
        self.most_items: int | None = None
        self.num_spare = 0
        self.passed: Callable[[Sequence[Any]], object] | None = None
        self._caps: dict[str, tuple[int | None, int | None]] = {}
        self._cap_workers: int | None = None
        self.cap_items: int | None = None
        self._most_workers: int | None = None
        self._spares_from: int | None = None
        self._is_over = False
        self._changed = changed
        self._turn = threading.Condition()
        self._owed = threading.local()

    @property
    def most_workers(self) -> int | None:
        """Workers that may take items; None: all of the Plan's."""
        return _least(self._most_workers, self._cap_workers)

    def let_work(self, most: int | None) -> None:
        """Let only so many workers take items, those with the lowest numbers, >= 1; None: as the Plan says."""
        with self._turn:
            self._most_workers = None if self._is_over else most
            self._turn.notify_all()
        self._changed()

    def cap(self, by: str, *, items: int | None = None, workers: int | None = None) -> None:
        """Let no batch be larger and no more workers take items, whatever an experiment does; None: as the others say.

        Args:
            by: Who says so; it replaces what the same said before.
            items: Of a batch, >= 1.
            workers: Those with the lowest numbers, >= 1.
        """
        with self._turn:
            if self._is_over:
                return
            self._caps[by] = (items, workers)
            self.cap_items = _least(*(one for one, _ in self._caps.values()))
            self._cap_workers = _least(*(one for _, one in self._caps.values()))
            self._turn.notify_all()
        self._changed()

    def expect_spares(self, first: int, count: int) -> None:
        """Note that workers with these numbers are spare: they wait for their turn, and leave at the end."""
        with self._turn:
            if not self._is_over:
                self._spares_from, self.num_spare = first, count
        self._changed()

    def wait_turn(self, number: int) -> bool:
        """Return once the worker with this number may take items; False: it was spare, and is to leave."""
        if self._most_workers is None and self._spares_from is None and self._cap_workers is None:
            return True
        with self._turn:
            self._turn.wait_for(lambda: self._is_over or self._may_work(number))
            return not (self._is_over and self._is_spare(number))

    def pause(self, num_items: int) -> None:
        """Sleep for items that were served, as `delay_seconds` says."""
        owed = getattr(self._owed, "seconds", 0.0) + self.delay_seconds * num_items
        if owed >= _LEAST_SLEEP:
            began = time.monotonic()
            time.sleep(owed)
            # What it slept too long is taken off the next one, but not off more than one.
            owed = max(-_LEAST_SLEEP, owed - (time.monotonic() - began))
        self._owed.seconds = owed

    def rest(self) -> None:
        """Undo what an experiment changed; spare workers stay until the end."""
        self.delay_seconds, self.most_items = 0.0, None
        self.let_work(None)

    def end(self) -> None:
        """Let go for good."""
        with self._turn:
            self._is_over = True
            self.cap_items = self._cap_workers = None
        self.passed = None
        self.rest()

    def _may_work(self, number: int) -> bool:
        if self._cap_workers is not None and number >= self._cap_workers:
            return False
        if self._most_workers is not None:
            return number < self._most_workers
        return not self._is_spare(number)

    def _is_spare(self, number: int) -> bool:
        return self._spares_from is not None and number >= self._spares_from


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustable:
    """One station, as an experiment sees it."""

    lever: Lever
    stages: tuple[str, ...]
    """That its workers run, in order."""
    num_workers: int
    max_batch: int
    """Of the Plan; 1: it takes no batches."""
    has_workers: bool
    """Of its own, and a queue; without, those before it run its stages."""
    may_delay: bool
    """Whether its workers sleep as the lever says: not where one thread carries all calls."""
    is_last: bool
    """Items that leave it are done."""
    add_spares: Callable[[int], object] | None
    """Starts so many workers beyond the Plan's, which the lever lets work; None: there can be none."""


class Levers:
    """Those of one run.

    Attributes:
        receiving: The receivers'.
        of_stations: Each station's, in the order of the pipeline.
        is_over: Whether the run is ending, and nothing can be changed any more.
        is_stopped: Whether it ends because somebody stopped it.
    """

    def __init__(self) -> None:
        self.receiving = Lever("receiving")
        self.of_stations: list[Lever] = []
        self.is_over = False
        self.is_stopped = False

    def add(self, name: str, changed: Callable[[], object]) -> Lever:
        """Return the lever of one more station; see `Lever`."""
        lever = Lever(name, changed)
        self.of_stations.append(lever)
        return lever

    def rest(self) -> None:
        """Undo all changes."""
        for lever in (self.receiving, *self.of_stations):
            lever.rest()

    def end(self, *, is_stopped: bool = False) -> None:
        """Undo all changes, and let none be made any more; any thread, more than once."""
        self.is_stopped = self.is_stopped or (is_stopped and not self.is_over)
        self.is_over = True
        for lever in (self.receiving, *self.of_stations):
            lever.end()
