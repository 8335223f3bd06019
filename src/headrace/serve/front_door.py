"""The door of a run in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.base.clock import Clock, SystemClock
from headrace.serve.door import Refused, Ticket, Work
from headrace.serve.source import RequestJob, RequestSource


class State(StrEnum):
    """Of a service."""

    STARTING = "starting"
    """Models are being loaded."""
    OPEN = "open"
    DRAINING = "draining"
    """It lets nobody in and finishes what is inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may be inside."""

    requests: int = 1_000
    """Jobs that somebody waits for."""
    num_bytes: int = 256 * 1024 * 1024
    """Of their payloads."""


@dataclass(frozen=True, slots=True)
class _Ticket:
    job: RequestJob
    source: RequestSource

    @property
    def id(self) -> str:
        return self.job.id

    def cancel(self) -> None:
        self.source.drop(self.job)


#: Says why work is not let in now; None: it is.
Judge = Callable[[Work], Refused | None]


class FrontDoor:
    """Lets work in; thread-safe.

    Args:
        source: Gives the jobs to the run.
        bounds: How much may be inside.
        deadline_seconds: Of work that names none; None: it waits as long as it takes.
        judge: Asked last; None: all that the bounds allow is let in.
        clock: The run's.

    Attributes:
        state: What it is doing.
        counts: {why: how much was refused}, with `in` for what was let in and `gone` for what was cancelled.
    """

    def __init__(
        self,
        source: RequestSource,
        bounds: Bounds | None = None,
        *,
        deadline_seconds: float | None = None,
        judge: Judge | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.state = State.STARTING
        self.counts: dict[str, int] = {}
        self._source = source
        self._bounds = bounds or Bounds()
        self._deadline_ns = None if deadline_seconds is None else round(deadline_seconds * 1e9)
        self._judge = judge
        self._clock = clock or SystemClock()
        source.on_ready = self._open
        source.on_stopping = self._drain

    def submit(self, work: Work) -> Ticket | Refused:
        """Let work in, or say why not; see `Door`."""
        refused = self._refuse(work)
        if refused is not None:
            self._count(refused.code)
            return refused
        if work.deadline_ns is None and self._deadline_ns is not None:
            work = replace(work, deadline_ns=self._clock.now_ns() + self._deadline_ns)
        self._count("in")
        return _Ticket(self._source.put(work.id or os.urandom(16).hex(), work), self._source)

    def _refuse(self, work: Work) -> Refused | None:
        if self.state is not State.OPEN:
            said = "models are being loaded" if self.state is State.STARTING else "it is stopping"
            code = "serve.starting" if self.state is State.STARTING else "serve.stopping"
            return Refused(503, code, f"the service takes no work now: {said}; try again")
        if self._source.num_open >= self._bounds.requests:
            return Refused(
                429, "serve.busy", f"{self._source.num_open:,} requests are inside, at most {self._bounds.requests:,}"
            )
        if self._source.num_bytes >= self._bounds.num_bytes:
            return Refused(
                429,
                "serve.busy",
                f"requests inside hold {self._source.num_bytes:,} bytes, at most {self._bounds.num_bytes:,}",
            )
        return None if self._judge is None else self._judge(work)

    def _open(self) -> None:
        if self.state is State.STARTING:
            self.state = State.OPEN

    def _drain(self) -> None:
        self.state = State.DRAINING

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
