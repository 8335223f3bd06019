"""Lets a job that is suspected of killing workers run with nothing beside it.

How this works: jobs go out as they come until a suspect is among them. It is held back, lent but not handed out, and with it
whatever comes from then on. Once nothing is out the suspects go out, each alone; then the others that were held back.
Their loans are extended meanwhile like those of any other buffer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from headrace.base.records import Job, Outcome, OutcomeKind

Settle = Callable[[Job | None, Outcome], None]


class Quarantine:
    """Holds back what is not to run beside something else. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_out = 0
        self._alone = False
        self._suspects: deque[Job] = deque()
        self._others: deque[Job] = deque()

    def track_settle(self, settle: Settle) -> Settle:
        """Return a job's settle that tells when it is no longer out."""

        def settled(job: Job | None, outcome: Outcome) -> None:
            settle(job, outcome)
            with self._changed:
                self._num_out -= 1
                self._changed.notify_all()

        return settled

    @property
    def is_holding(self) -> bool:
        """Whether jobs are held back or one runs alone: nothing is to be received now."""
        with self._changed:
            return bool(self._alone or self._suspects or self._others)

    def pass_through(self, jobs: Iterable[tuple[Job, bool]]) -> list[Job]:
        """Take jobs just received, each with whether it is a suspect, and return those that may go on now."""
        with self._changed:
            free: list[Job] = []
            for job, suspect in jobs:
                if suspect:
                    self._suspects.append(job)
                elif self._alone:
                    self._others.append(job)
                else:
                    free.append(job)
            self._num_out += len(free)
            return free

    def take(self, limit: int, wait_seconds: float) -> list[Job]:
        """Return what may go out now, waiting for it so long: one suspect, or at the end up to limit others."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_out == 0, wait_seconds):
                return []
            self._alone = bool(self._suspects)
            if self._suspects:
                taken = [self._suspects.popleft()]
            else:
                taken = [self._others.popleft() for _ in range(min(limit, len(self._others)))]
            self._num_out += len(taken)
            return taken

    def give_back(self) -> None:
        """Return what is still held back to its queue."""
        with self._changed:
            held = [*self._suspects, *self._others]
            self._suspects.clear()
            self._others.clear()
            self._num_out += len(held)
        for job in held:
            job.settle(Outcome(OutcomeKind.RETURNED, "the run was stopped before the job began"))
