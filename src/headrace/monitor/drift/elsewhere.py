"""The collector's copy in a child process, which has no job at hand: it measures, and the collector itself counts.

How this works. Before each request the copy learns by which numbers its items are chosen, and how many; a number below 0 stands
for an item that was counted before. It notes what it measures by the item's place in the request. The notes travel with the
answer. Results are read where they arrive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.base.current_job import Worked
from headrace.base.records import Job
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.entries import Entry, measure_entry, number_of
from headrace.monitor.drift.pixels import PIXEL_FEATURES, measure_pixels
from headrace.monitor.drift.statistics import SECONDS

_ENTRY, _VALUES, _LOST = "entry", "values", "lost"


class CollectorElsewhere:
    """Has those methods of `Collector` that see items."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, int]] = {}
        self._step = 1
        self._notes: list[list[Any]] = []
        self._spent_ns = 0

    def begin(self, items: Sequence[Worked], brief: Any) -> None:
        """Note which items come next; by their jobs, of which each has one of its own here."""
        self._step, numbers = brief
        self._places = {
            id(item.job): (index, number)
            for index, (item, number) in enumerate(zip(items, numbers, strict=True))
            if number >= 0
        }

    def report(self) -> Any:
        """Return the CPU time that looking took, ns, and the notes."""
        notes, self._notes, self._places = self._notes, [], {}
        spent, self._spent_ns = self._spent_ns, 0
        return [spent, notes]

    def enter(self, job: Job, value: Any, stage: str, result: Any, error: BaseException | None, cpu_ns: int) -> None:
        """See `Collector.enter`."""
        self._note(
            job, lambda number: [_ENTRY, *measure_entry(number, self._step, value, stage, result, error, cpu_ns)]
        )

    def look(self, job: Job, image: Any) -> None:
        """See `Collector.look`."""

        def measure(number: int) -> list[Any] | None:
            found = measure_pixels(image) if number % self._step == 0 and isinstance(image, np.ndarray) else None
            return None if found is None else [_VALUES, list(PIXEL_FEATURES), [float(value) for value in found]]

        self._note(job, measure)

    def time(self, job: Job, stage: str, cpu_ns: int) -> None:
        """See `Collector.time`."""
        if cpu_ns > 0:
            seconds = math.log10(cpu_ns * 1e-9)
            self._note(job, lambda number: None if number % self._step else [_VALUES, [SECONDS + stage], [seconds]])

    def answer(self, job: Job, result: Any) -> None:
        """Do nothing: the result arrives where the job is."""

    def _note(self, job: Job, measure: Callable[[int], list[Any] | None]) -> None:
        index, number = self._places.get(id(job), (-1, -1))
        if index < 0:  # a trial of the warm-up, or counted before
            return
        began = time.thread_time_ns()
        try:
            found = measure(number)
        except Exception:
            found = [_LOST]
        if found is not None:
            self._notes.append([index, *found])
        self._spent_ns += time.thread_time_ns() - began


def brief_for(items: Sequence[Worked], step: int) -> list[Any]:
    """Return what a copy has to know of items."""
    return [step, [number_of(item.job) if item.job.attempt <= 1 else -1 for item in items]]


def take_notes(collector: Collector, items: Sequence[Worked], notes: Any) -> None:
    """Count what a copy noted."""
    spent_ns, found = notes
    collector.spend(spent_ns)
    for index, kind, *rest in found:
        job = items[index].job
        if kind == _ENTRY:
            collector.add_entry(job, Entry(*rest))
        elif kind == _VALUES:
            collector.add_values(job, *rest)
        else:
            collector.lose(1, "an item could not be measured in its child process")
