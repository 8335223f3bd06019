"""A door behind which a pipeline's module works in a thread of its own, without a run."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.base.errors import ItemError
from headrace.serve.door import Ended, Refused, Ticket, Work


class Ready:
    """The health of a service that is well."""

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not

    def why_not_live(self) -> str:
        """Say why not."""
        return self.why_not

    def why_not_ready(self) -> str:
        """Say why not."""
        return self.why_not


class AnsweringDoor:
    """Calls a function for each payload, in its order, and keeps what came."""

    def __init__(self, work_on: Callable[[Any], Any]) -> None:
        self.works: list[Work] = []
        self.cancelled: set[str] = set()
        self.num_cancelled = threading.Semaphore(0)
        self.refuses_from: int | None = None
        self._work_on = work_on
        self._ids = itertools.count()
        self._queue: queue.SimpleQueue[tuple[str, Work] | None] = queue.SimpleQueue()

    def submit(self, work: Work) -> Ticket | Refused:
        """Let work in, up to the limit."""
        if self.refuses_from is not None and len(self.works) >= self.refuses_from:
            return Refused(429, "serve.busy", "full", 3.0)
        self.works.append(work)
        job_id = str(next(self._ids))
        self._queue.put((job_id, work))
        return _Ticket(job_id, self)

    def run(self) -> None:
        """Answer until `stop`."""
        while (taken := self._queue.get()) is not None:
            job_id, work = taken
            if job_id not in self.cancelled:
                work.on_end(self._answer(job_id, work))

    def stop(self) -> None:
        """End `run`."""
        self._queue.put(None)

    def _answer(self, job_id: str, work: Work) -> Ended:
        try:
            result = self._work_on(work.payload)
            return Ended(job_id, work.prepare(result) if work.prepare else result, plan_id="plan-1")
        except ItemError as error:
            return Ended(job_id, code=error.code, reason=error.reason, status=422)


class _Ticket:
    def __init__(self, job_id: str, door: AnsweringDoor) -> None:
        self.id = job_id
        self._door = door

    def cancel(self) -> None:
        self._door.cancelled.add(self.id)
        self._door.num_cancelled.release()


@contextmanager
def answering(work_on: Callable[[Any], Any]) -> Iterator[AnsweringDoor]:
    """Open a door for the length of a block."""
    door = AnsweringDoor(work_on)
    thread = threading.Thread(target=door.run)
    thread.start()
    try:
        yield door
    finally:
        door.stop()
        thread.join()
