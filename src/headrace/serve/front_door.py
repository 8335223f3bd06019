"""The door of a run in this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.plan import ServePlan
from headrace.serve.door import Refused, Ticket, Work
from headrace.serve.ids import make_id
from headrace.serve.source import RequestJob, RequestSource


class State(StrEnum):
    """Of a service."""

    STARTING = "starting"
    """Models are being loaded."""
    OPEN = "open"
    LEAVING = "leaving"
    """It is about to drain: clients are told to go elsewhere, and what they still send is answered."""
    DRAINING = "draining"
    """It lets nobody in and finishes what is inside."""


@dataclass(slots=True)
class _Ticket:
    job: RequestJob
    source: RequestSource

    @property
    def id(self) -> str:
        return self.job.id

    def cancel(self) -> None:
        self.source.drop(self.job)


#: What was refused a millisecond ago would be refused again, if it has no more time.
_SAME_NS = 1_000_000
#: For so long after work was refused, the heads of requests are looked at before their bodies are.
_REFUSING_NS = 100_000_000


class _Foreseen(msgspec.Struct, frozen=True, gc=False):
    """The last work that was refused by its head."""

    refused: Refused
    task: str
    priority: int
    left_ns: int | None
    at_ns: int

    def holds_for(self, work: Work, left_ns: int | None, now_ns: int) -> bool:
        """Return whether other work would be refused as well: it goes no sooner, and has no more time."""
        return (
            now_ns - self.at_ns < _SAME_NS
            and work.task == self.task
            and work.priority >= self.priority
            and left_ns is not None
            and self.left_ns is not None
            and left_ns <= self.left_ns
        )


#: What one of several tasks may have of the requests inside.
_PART_OF_TASK = 0.75


class Judge(Protocol):
    """Says why work is not let in; None: it is."""

    def __call__(self, work: Work) -> Refused | None:
        """Decide, and learn from what becomes of the work."""
        ...

    def foresee(self, work: Work) -> Refused | None:
        """Decide where refusing needs no second thought; None: ask again when all of it is there."""
        ...


class FrontDoor:
    """Lets work in; thread-safe.

    Args:
        source: Gives the jobs to the run.
        plan: What is let in.
        judge: Asked last, if the Plan says so; None: all that the bounds allow is let in.
        clock: The run's.

    Attributes:
        state: What it is doing.
        refused: {why: how much was refused}, without what the service tries itself with.
    """

    def __init__(
        self,
        source: RequestSource,
        plan: ServePlan | None = None,
        *,
        judge: Judge | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.state = State.STARTING
        self.refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._refused_ns = -_REFUSING_NS
        self._foreseen: _Foreseen | None = None
        self._source = source
        self._judge = judge
        self._clock = clock or SystemClock()
        self.follow(plan or ServePlan())
        source.on_ready = self._open
        source.on_stopping = self._drain

    def follow(self, plan: ServePlan, num_tasks: int = 1) -> None:
        """Let in what another Plan says, and of one of several tasks not so much that others find no room."""
        self._plan = plan
        self._most_of_task = plan.max_requests if num_tasks < 2 else max(1, round(plan.max_requests * _PART_OF_TASK))

    @property
    def is_refusing(self) -> bool:
        """Whether work was refused a moment ago, or none is let in; see `Door`."""
        return self.state is not State.OPEN or self._clock.now_ns() - self._refused_ns < _REFUSING_NS

    def foresee(self, work: Work) -> Refused | None:
        """Say why work would not be let in, of which only the head has come; see `Door`."""
        self._set_deadline(work)
        now_ns = self._clock.now_ns()
        left_ns = None if work.deadline_ns is None else work.deadline_ns - now_ns
        known = self._foreseen
        if known is not None and known.holds_for(work, left_ns, now_ns):
            self._note_refused(known.refused)
            return known.refused
        refused = self._refuse(work, None if self._judge is None else self._judge.foresee)
        self._foreseen = None
        if refused is not None:
            self._foreseen = _Foreseen(refused, work.task, work.priority, left_ns, now_ns)
            self._note_refused(refused)
        return refused

    def submit(self, work: Work) -> Ticket | Refused:
        """Let work in, or say why not; see `Door`."""
        self._set_deadline(work)
        refused = self._refuse(work, self._judge)
        if refused is not None:
            if not work.is_own:
                self._note_refused(refused)
            return refused
        return _Ticket(self._source.put(work.id or make_id(), work), self._source)

    def _set_deadline(self, work: Work) -> None:
        if work.deadline_ns is None and self._plan.deadline_seconds:
            work.deadline_ns = (work.received_ns or self._clock.now_ns()) + round(self._plan.deadline_seconds * 1e9)

    def _note_refused(self, refused: Refused) -> None:
        self._refused_ns = self._clock.now_ns()
        with self._lock:
            self.refused[refused.code] += 1
        self._source.tally.note_refused(refused.status)

    def _refuse(self, work: Work, judge: Callable[[Work], Refused | None] | None) -> Refused | None:
        if self.state not in (State.OPEN, State.LEAVING):
            said = "models are being loaded" if self.state is State.STARTING else "it is stopping"
            code = "serve.starting" if self.state is State.STARTING else "serve.stopping"
            return Refused(503, code, f"the service takes no work now: {said}; try again")
        plan, num, num_bytes = self._plan, self._source.num_inside, self._source.num_bytes
        if num >= plan.max_requests:
            return Refused(429, "serve.busy", f"{num:,} requests are inside, at most {plan.max_requests:,}")
        most = self._most_of_task
        if most < plan.max_requests and (num := self._source.count_open(work.task)) >= most:
            return Refused(429, "serve.busy", f"{num:,} requests of this task are inside, at most {most:,}")
        if num_bytes >= plan.max_bytes:
            return Refused(429, "serve.busy", f"requests inside hold {num_bytes:,} bytes, at most {plan.max_bytes:,}")
        return None if judge is None or plan.admission == "all" else judge(work)

    def leave(self) -> None:
        """Note that the service is about to end."""
        if self.state is State.OPEN:
            self.state = State.LEAVING

    def _open(self) -> None:
        if self.state is State.STARTING:
            self.state = State.OPEN

    def _drain(self) -> None:
        self.state = State.DRAINING
