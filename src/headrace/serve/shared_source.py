"""A source of requests in one of several processes, which finds the requests that kill their process.

How this works: each request is known by a digest of what it carries, so that a client's second try is the same one. The
table of what is in work outlives the process (see `base.in_flight`). What was in work when one died is a suspect, and so is
what was all that it had: it waits until nothing else is inside, runs alone, and is in work from then until it is answered. What
was alone in work when another one died is refused from then on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from headrace.base.clock import Clock
from headrace.base.in_flight import InFlightPlace
from headrace.base.policies.blame import Record
from headrace.base.records import Job, Outcome
from headrace.base.worker_slot import WorkerSlot
from headrace.serve.door import Ended
from headrace.serve.source import RequestJob, RequestSource
from headrace.serve.statuses import status_of
from headrace.sources.quarantine import Quarantine

#: More deliveries than a record has deaths: fewer would mean that somebody redrove it, and nobody redrives a request.
_DELIVERIES = 10**9
_KILLER = "serve.killer"


class SharedRequestSource(RequestSource):
    """See above.

    Args:
        clock: The run's.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._slot: WorkerSlot | None = None
        self._quarantine = Quarantine()
        self._places: dict[Job, tuple[InFlightPlace, bool]] = {}

    def take(self, slot: WorkerSlot) -> None:
        """Record what is in work in the slot, and heed its records of deaths."""
        self._slot = slot

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return suspects, one at a time, and what was held back beside them."""
        if self._quarantine.is_holding:
            return [self._hand_out(job) for job in self._quarantine.take(limit, wait_seconds)]
        return super().receive(limit, wait_seconds)

    def stop(self) -> None:
        """End also what was held back."""
        super().stop()
        self._quarantine.give_back()

    def _enter(self, job: RequestJob) -> Ended | None:
        if self._slot is None:
            return None
        key = digest(job.task, job.payload)
        record = self._slot.record(key, _DELIVERIES)
        if record is not None and record.blamed:
            return _refuse(job, record)
        place = self._slot.table.enter(key, "", time.monotonic())
        job.on_work = functools.partial(self._slot.table.work, place)
        self._places[job] = place, record is not None and record.is_suspect
        job.intercept_settle(self._quarantine.track_settle(self._leave))
        return None

    def _leave(self, job: Job | None, outcome: Outcome) -> None:
        if isinstance(job, RequestJob) and self._slot is not None:
            place, _ = self._places.pop(job)
            self._settle(job, outcome)  # makes the answer, which may kill too
            self._slot.table.leave(place)

    def _hand_out(self, job: Job) -> Job:
        """Return a job that was held back; a suspect counts as worked on from now until it is settled."""
        place, is_suspect = self._places[job]
        if is_suspect and self._slot is not None:
            self._slot.table.work(place, 1)
        return job

    def _let_in(self, jobs: Sequence[Job]) -> Sequence[Job]:
        free = self._quarantine.pass_through((job, self._places[job][1]) for job in jobs)
        if len(free) < len(jobs):
            self._wake_receivers()
        return free


def digest(task: str, payload: Any) -> str:
    """Return what tells a task and its payload from others."""
    if isinstance(payload, str):
        payload = payload.encode("utf-8", "surrogatepass")
    if not isinstance(payload, bytes):
        payload = payload.tobytes() if hasattr(payload, "tobytes") else repr(payload).encode()
    found = sha256(task.encode("utf-8", "surrogatepass") + b"\0")
    found.update(payload)
    return found.hexdigest()


def _refuse(job: RequestJob, record: Record) -> Ended:
    reason = (
        f"{_KILLER}: a request like this one {record.reason}; it is not run again until the service is started anew"
    )
    return Ended(job.id, code=_KILLER, reason=reason, status=status_of(_KILLER))
