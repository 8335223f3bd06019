"""Stand-ins for a pipeline's ends: a source that gives the same jobs again and again, a delivery that forgets.

With them a pipeline can be run as often as needed: no job is acked and no result delivered.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.protocols import Source
from headrace.base.records import Job, Outcome
from headrace.profiler.isolation.values import kept


@dataclass(frozen=True, slots=True)
class Entry:
    """What a job is made of, as often as it is given out."""

    id: str
    payload: Any
    task: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job) -> Entry:
        """Return what another job like this one is made of."""
        return cls(job.id, job.payload, job.task, dict(job.attributes))

    def job(
        self, round_number: int, settle: Callable[[Job, Outcome], None] | None = None, *, copies: bool = False
    ) -> Job:
        """Return a job that nobody waits for; its id carries the round, because ids are unique within a run."""
        payload = kept(self.payload) if copies else self.payload
        return Job(
            f"{self.id}#{round_number}", payload, task=self.task, attributes=dict(self.attributes), settle=settle
        )


class Replay(Source):
    """A source without end, until `end` is called: gives its entries round and round. Thread-safe.

    Args:
        entries: At least one.
        before: Called with each entry just before it is given out.
        copies: Give each job a copy of its payload.
    """

    is_remote = False  # its entries were recorded here

    def __init__(
        self, entries: Sequence[Entry], before: Callable[[Entry], object] | None = None, *, copies: bool = False
    ) -> None:
        if not entries:
            raise ValueError("there is nothing to replay: entries is empty")
        self._entries = entries
        self._before = before
        self._copies = copies
        self._numbers = itertools.count()
        self._in_flight: dict[int, Job] = {}
        self._lock = threading.Lock()
        self._ended = False

    @property
    def is_exhausted(self) -> bool:
        """Whether it was ended."""
        return self._ended

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return limit jobs; None after the end."""
        jobs = []
        for _ in range(limit):
            round_number, place = divmod(next(self._numbers), len(self._entries))
            entry = self._entries[place]
            if self._before is not None:
                self._before(entry)
            jobs.append(entry.job(round_number, self._settled, copies=self._copies))
        with self._lock:
            if self._ended:
                return None
            self._in_flight.update((id(job), job) for job in jobs)
        return jobs

    def end(self) -> None:
        """Give out nothing more; what is still queued is dropped instead of worked off, as if its loans had run out."""
        with self._lock:
            self._ended = True
            for job in self._in_flight.values():
                job.lost = True

    def close(self) -> None:
        """End it."""
        self.end()

    def _settled(self, job: Job, outcome: Outcome) -> None:
        with self._lock:
            self._in_flight.pop(id(job), None)


class Discard:
    """A delivery that forgets every result.

    Args:
        default_workers: As many as the delivery that it stands for.
    """

    flush_items = 1
    flush_seconds = 0.0

    def __init__(self, default_workers: int) -> None:
        self.default_workers = default_workers

    def open(self, context: Any) -> None:
        """Nothing to make ready."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Forget it."""
        return True

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to release."""
