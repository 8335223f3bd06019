"""Items that come at a rate, at random times, whether the pipeline keeps up or not: as users send them.

Latency then counts from when a job was due: a pipeline that is late to take a job does not get a better figure for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np

from headrace.base.plan import SourcePlan
from headrace.base.records import Job
from headrace.compare.blocks import SameItems
from headrace.sources.finite import Entry


class PacedItems(SameItems):
    """The items of another source, at random times (Poisson), the same for every block.

    The first job comes at once, and the others' time begins when the pipeline asks for more: it warms up with that one.

    Args:
        items: Which items.
        rate: Jobs per second.
        seed: Of the times.

    Attributes:
        rate: Jobs per second.
        due: {job: when it came, on the monotonic clock}; of the present block, without the first one.
    """

    def __init__(self, items: SameItems, rate: float, seed: int = 0) -> None:
        super().__init__(items)
        self.due: dict[str, float] = {}
        self._items = items
        self.rate = rate
        self._seed = seed
        self._turn = threading.Lock()
        self._after: list[float] = []
        self._began: float | None = None
        self._num_given = 0

    def entries(self) -> Iterator[Entry]:
        """Return `num_items` of them."""
        self._items.num_items = self.num_items
        return self._items.entries()

    def open(self, settings: SourcePlan) -> None:
        """Draw the times."""
        super().open(settings)
        num = self.num_items - 1
        gaps = np.random.default_rng(self._seed).exponential(1.0, num)
        gaps *= num / self.rate / max(gaps.sum(), 1e-9)  # a small sample's own rate is that of its luck
        self._after = [0.0, *np.cumsum(gaps).tolist()]
        self.due.clear()
        self._began, self._num_given = None, 0

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs that have come, waiting for the first; [] if none came in time, None at the end."""
        with self._turn:
            if self._num_given == 0:
                return self._give(1, wait_seconds)
            if self._began is None:
                self._began = time.monotonic()
            if self._num_given < len(self._after):
                until = self._began + self._after[self._num_given] - time.monotonic()
                time.sleep(max(0.0, min(until, wait_seconds)))
                limit = min(limit, self._count_come())
                wait_seconds = 0.0
            return self._give(limit, wait_seconds) if limit else []

    def _count_come(self) -> int:
        elapsed = time.monotonic() - (self._began or 0.0)
        return int(np.searchsorted(self._after, elapsed, side="right")) - self._num_given

    def _give(self, limit: int, wait_seconds: float) -> list[Job] | None:
        jobs = super().receive(limit, wait_seconds)
        for job in jobs or ():
            if self._began is not None:
                self.due[job.id] = self._began + self._after[self._num_given]
            self._num_given += 1
        return jobs
