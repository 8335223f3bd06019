"""A source that is a list, and remembers how every delivery of every job ended."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

from headrace.base.protocols import Source
from headrace.base.records import Job, Outcome, OutcomeKind, Payload


class ListSource(Source):
    """Gives out a list's members as jobs `0`, `1`, ...; thread-safe.

    Args:
        payloads: What the jobs carry.
        tasks: Their tasks, as many as payloads; None for none.
        max_receives: Deliveries of one job; a failure in the last is final.
        endless: Stay open when all is done, as a queue does.

    Attributes:
        outcomes: By job id, how each of its deliveries ended, in order.
        most_in_flight: The largest number of jobs received and not settled at any moment.
        ends: False if endless.
        closed: Whether the runtime closed it.
    """

    is_remote = False  # the test itself says what its jobs are

    def __init__(
        self,
        payloads: Sequence[Payload | Any],
        *,
        tasks: Sequence[str] | None = None,
        max_receives: int = 1,
        endless: bool = False,
    ) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}
        self.most_in_flight = 0
        self.closed = False
        self.num_opened = 0
        self._max_receives = max_receives
        self._in_flight: dict[str, Job] = {}
        self.ends = not endless
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        names = tasks or [""] * len(payloads)
        #: Heap of what is to be given out: when (time.monotonic()), order, id, payload, task, attempt.
        self._waiting: list[tuple[float, int, str, Any, str, int]] = [
            (0.0, next(self._numbers), str(index), payload, task, 1)
            for index, (payload, task) in enumerate(zip(payloads, names, strict=True))
        ]

    @property
    def in_flight(self) -> list[Job]:
        """Jobs given out and not settled."""
        with self._changed:
            return list(self._in_flight.values())

    @property
    def is_endless(self) -> bool:
        """Whether it stays open when all is done."""
        return not self.ends

    @property
    def is_exhausted(self) -> bool:
        """Whether everything was given out and no more will come."""
        return self.ends and not self._waiting

    def final(self, kind: OutcomeKind) -> set[str]:
        """Return the ids of the jobs whose last delivery ended so."""
        return {id_ for id_, outcomes in self.outcomes.items() if outcomes[-1].kind is kind}

    def open(self, settings: Any) -> None:
        """Nothing to make ready."""
        self.num_opened += 1

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs, [] if none is due within wait_seconds, None at the end."""
        give_up_at = time.monotonic() + wait_seconds
        with self._changed:
            while not self.closed:
                now = time.monotonic()
                jobs: list[Job] = []
                while self._waiting and len(jobs) < limit and self._waiting[0][0] <= now:
                    jobs.append(self._lend(*heapq.heappop(self._waiting)[2:]))
                if jobs:
                    return jobs
                if not self._waiting and not self._in_flight and self.ends:
                    return None
                if now >= give_up_at:
                    return []
                due = self._waiting[0][0] if self._waiting else give_up_at
                self._changed.wait(max(0.0, min(due, give_up_at) - now))
            return None

    def close(self) -> None:
        """Give out nothing more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _lend(self, id_: str, payload: Any, task: str, attempt: int) -> Job:
        def settle(job: Job, outcome: Outcome) -> None:
            with self._changed:
                del self._in_flight[id_]
                self.outcomes.setdefault(id_, []).append(outcome)
                if (
                    outcome.excused
                    or outcome.spared
                    or (outcome.kind is OutcomeKind.RETRY and attempt < self._max_receives)
                ):
                    due, tries = (
                        time.monotonic() + outcome.delay_seconds,
                        attempt + (not (outcome.excused or outcome.spared)),
                    )
                    heapq.heappush(self._waiting, (due, next(self._numbers), id_, payload, task, tries))
                self._changed.notify_all()

        job = Job(id_, payload, task=task, attempt=attempt, max_attempts=self._max_receives, settle=settle)
        self._in_flight[id_] = job
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        return job
