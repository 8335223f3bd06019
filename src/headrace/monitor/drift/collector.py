"""Counts what a process sees of its items, and hands it on in parts.

How this works. Workers call it from their threads; a lock keeps their sums apart from the moment in which a part is taken. Some
items are looked at closely, chosen by a hash of their id, so that the choice depends on nothing that the items or their order
have in common. How many is adapted once a second to what that costs: `BUDGET_RATIO` of a core, whatever the rate. Nothing here
raises: what cannot be counted is counted as lost, and said once.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from headrace.base.error_origin import text_of
from headrace.base.records import Job
from headrace.monitor.drift.answers import read_answer
from headrace.monitor.drift.entries import Entry, measure_entry, number_of
from headrace.monitor.drift.pixels import PIXEL_FEATURES, measure_pixels
from headrace.monitor.drift.statistics import OWN, SECONDS
from headrace.monitor.drift.strata import missing_key
from headrace.monitor.drift.sums import Adder
from headrace.runs.formats.drift import DriftWindow

logger = logging.getLogger("headrace")

#: Share of a core that looking closely may take.
BUDGET_RATIO = 0.003
#: One item of so many is looked at closely, at the beginning and at most.
FIRST_STEP, MOST_STEP = 8, 1024
#: Parts of a window, so that those of several processes make windows of the right size.
PARTS_PER_WINDOW = 8
#: Parts that wait for the thread that takes them; the oldest are lost then.
_MOST_WAITING = 1_000
_MOST_KEY = 80

#: A user's function: (job, result) -> {name: number}.
OwnValues = Callable[[Job, Any], Mapping[str, float]]


class Collector:
    """Counts the items of this process.

    Args:
        key: The attribute of a job that names its stratum; `stream`, `host` (of its address) and `folder` (of its file) are
            known without one; empty: all items are one stratum.
        hours: Hours of the day that a stratum spans; 0: any.
        window_items: Items of a window that are looked at closely.
        own: Gives further values of an item.
        budget_ratio: Share of a core that looking closely may take; from 1 on every item is looked at from the beginning.
        now: Unix seconds.
    """

    def __init__(
        self,
        key: str = "",
        *,
        hours: int = 0,
        window_items: int = 500,
        own: OwnValues | None = None,
        budget_ratio: float = BUDGET_RATIO,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.key = key
        self.hours = hours
        self.own = own
        self.step = 1 if budget_ratio >= 1 else FIRST_STEP
        self._part_items = max(1, window_items // PARTS_PER_WINDOW)
        self._now = now
        self._budget_ratio = budget_ratio
        self._lock = threading.Lock()
        self._adder = Adder()
        self._began = now()
        self._parts: deque[DriftWindow] = deque(maxlen=_MOST_WAITING)
        self._spent_ns = 0
        self._has_said = False
        self._closed = Adder()

    def looks_at(self, job: Job) -> bool:
        """Return whether this item is looked at closely."""
        return number_of(job) % self.step == 0

    def enter(self, job: Job, value: Any, stage: str, result: Any, error: BaseException | None, cpu_ns: int) -> None:
        """Note that an item passed its first stage, which decodes it where there is anything to decode.

        Args:
            job: Its job.
            value: What came in.
            stage: The stage's name.
            result: What came out; None with an error.
            error: What was raised instead.
            cpu_ns: CPU time of the stage.
        """
        if job.attempt > 1:  # counted before
            return
        began = time.thread_time_ns()
        try:
            self._enter(job, value, stage, result, error, cpu_ns)
        except Exception:
            self._lose("an item")
        self._spent_ns += time.thread_time_ns() - began  # a race may lose some, which adapts a little later

    def _enter(self, job: Job, value: Any, stage: str, result: Any, error: BaseException | None, cpu_ns: int) -> None:
        number = number_of(job)
        self.add_entry(job, measure_entry(number, self.step, value, stage, result, error, cpu_ns))

    def add_entry(self, job: Job, entry: Entry) -> None:
        """Count an item that passed its first stage."""
        has_no_key = bool(self.key) and not self._key_of(job)
        with self._lock:
            adder = self._adder
            stratum = adder.stratum(self.stratum_of(job))
            adder.items += 1
            if has_no_key:
                adder.count_without_key(job.attributes)
            adder.sampled += entry.is_looked_at
            adder.count(stratum, *entry.counts)
            adder.add(stratum, entry.names, entry.values)
            if adder.sampled >= self._part_items:
                self._close_part()

    def look(self, job: Job, image: Any) -> None:
        """Note the pixels of an image, if it is one that is looked at closely."""
        if job.attempt > 1 or not self.looks_at(job):
            return
        began = time.thread_time_ns()
        try:
            found = measure_pixels(image) if isinstance(image, np.ndarray) else None
            if found is not None:
                self.add_values(job, PIXEL_FEATURES, found)
        except Exception:
            self._lose("the pixels of an item")
        self._spent_ns += time.thread_time_ns() - began

    def time(self, job: Job, stage: str, cpu_ns: int) -> None:
        """Note the CPU time that an item took in a stage, if it is looked at closely."""
        if job.attempt == 1 and cpu_ns > 0 and self.looks_at(job):
            self.add_values(job, (SECONDS + stage,), (math.log10(cpu_ns * 1e-9),))

    def answer(self, job: Job, result: Any) -> None:
        """Note what an item's result says."""
        if job.attempt > 1:
            return
        try:
            answer = read_answer(result)
            if self.own is not None and self.looks_at(job):
                answer.means |= self._values_of(self.own, job, result)
            with self._lock:
                stratum = self._adder.stratum(self.stratum_of(job))
                self._adder.count(stratum, *answer.counts)
                self._adder.add(stratum, answer.means, answer.means.values())
        except Exception:
            self._lose("the result of an item")

    def _values_of(self, own: OwnValues, job: Job, result: Any) -> dict[str, float]:
        """Return what the user's function gives; nothing if it raises."""
        try:
            return {OWN + str(name)[:_MOST_KEY]: float(value) for name, value in own(job, result).items()}
        except Exception:
            self._lose("the values of --drift-values of an item", with_stack=True)
            return {}

    def stratum_of(self, job: Job) -> str:
        """Return the stratum of a job."""
        name = self._key_of(job)[:_MOST_KEY] if self.key else ""
        if self.hours:
            hour = int(self._now() // 3600) % 24 // self.hours * self.hours
            name = f"{name} {hour:02d}-{hour + self.hours:02d} h".lstrip()
        return name

    def _key_of(self, job: Job) -> str:
        given = job.attributes.get(self.key)
        if given is not None:
            return str(given)
        if self.key == "stream":
            return job.stream or ""
        if self.key == "folder" and isinstance(job.payload, str | Path):
            return Path(job.payload).parent.name
        if self.key == "host" and isinstance(job.payload, str):
            return urlsplit(job.payload).hostname or ""
        return ""

    def spend(self, spent_ns: int) -> None:
        """Note CPU time that a copy in a child process took."""
        self._spent_ns += spent_ns

    def adapt(self, elapsed_seconds: float) -> None:
        """Look at fewer items if looking took more than its share of the time since the last call, or at more."""
        spent, self._spent_ns = self._spent_ns * 1e-9, 0
        if spent > self._budget_ratio * elapsed_seconds:
            self.step = min(MOST_STEP, 2 * self.step)
        elif spent < self._budget_ratio / 4 * elapsed_seconds:
            self.step = max(1, self.step // 2)

    def take(self, *, rest: bool = False) -> list[DriftWindow]:
        """Return the parts that are complete, and what is left if asked for."""
        with self._lock:
            if rest and not self._adder.is_empty:
                self._close_part()
            found = list(self._parts)
            self._parts.clear()
        return found

    def lose(self, items: int, what: str) -> None:
        """Count items as lost, and say why, once."""
        with self._lock:
            self._adder.lost += items
        self._say(what)

    def missing_key(self) -> str:
        """Return what is wrong if no job so far had the key; call `take` with the rest before."""
        return missing_key([self._closed.window(self._began, self._began, key=self.key)])

    def add_values(self, job: Job, names: Collection[str], values: Iterable[float]) -> None:
        """Note values of an item."""
        with self._lock:
            self._adder.add(self._adder.stratum(self.stratum_of(job)), names, values)

    def _close_part(self) -> None:
        now = self._now()
        part = self._adder.window(self._began, now, key=self.key, hours=self.hours)
        self._parts.append(part)
        self._closed.count_keys_of(part)
        self._adder, self._began = Adder(), now

    def _lose(self, what: str, *, with_stack: bool = False) -> None:
        """Count one as lost, and say the error that is being handled; the stack where it is the user's code."""
        error = sys.exception() or RuntimeError()
        with self._lock:
            self._adder.lost += 1
        self._say(f"{what} could not be measured ({text_of(error)})", with_stack=with_stack)

    def _say(self, what: str, *, with_stack: bool = False) -> None:
        if not self._has_said:
            self._has_said = True
            logger.warning(
                "drift: %s; the items go on; more of this is counted, and not said again", what, exc_info=with_stack
            )
