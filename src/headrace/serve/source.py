"""Gives the run the jobs that came as requests, and tells each request how its job ended.

How this works: the door puts a job into a list, from which a receiver takes it at once. Whatever ends the job (its result, an
error, its deadline, the end of the run) takes it out of the table of those that are waited for; who takes it out answers, so
each request is answered once. A job whose client is gone is marked as cancelled, so that no stage begins to work on it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.parking import Parking
from headrace.base.plan import SourcePlan
from headrace.base.protocols import Source
from headrace.base.records import Job, Outcome, OutcomeKind, QueueStatistics
from headrace.base.request_tally import RequestTally
from headrace.pipeline.reasons import parse_reason
from headrace.serve.door import Ended, Work
from headrace.serve.http.request import LONGEST_REASON, as_unicode
from headrace.serve.statuses import status_of

logger = logging.getLogger("headrace")

#: How long after its deadline a job is given up whose stage still works on it: the stage's own end says more.
_LATE_NS = 20_000_000
_STOPPED = "serve.stopping"
#: What the notes of refused requests begin with.
REFUSED = "refused."
_OUR_FAULT = 500
#: As web servers log it: the client went away.
_GONE = 499


class RequestJob(Job):
    """A job that somebody waits for."""

    __slots__ = ("is_settled", "num_bytes", "number", "result", "work")

    def __init__(
        self, job_id: str, number: int, work: Work, settle: Callable[[Job, Outcome], None], max_attempts: int
    ) -> None:
        super().__init__(
            job_id,
            work.payload,
            task=work.task,
            attributes=work.attributes,
            deadline_ns=work.deadline_ns,
            max_attempts=max_attempts,
            settle=settle,
        )
        self.priority = work.priority
        self.passages = work.passages
        self.number = number
        self.work = work
        self.result: Any = None
        self.is_settled = False
        """Neither the run nor a list has it any more."""
        payload = work.payload
        self.num_bytes = len(payload) if isinstance(payload, bytes) else getattr(payload, "nbytes", 0)


class RequestSource(Source):
    """See above; thread-safe.

    Args:
        clock: The run's.

    Attributes:
        on_ready: Called when the run asks for jobs for the first time: its workers are open.
        on_stopping: Called when it will ask for no more.
        may_leave: Says whether the run may end now that it was asked to.
        plan_id: Of the Plan in use; named in answers.
        tells_failures: Whether clients are told what failed in the pipeline, with files and lines of this machine.
        refused: Returns {why: how many requests never became jobs}.
        tally: How requests ended so far.
        answered_at: {task: when a request of it was last answered with a result, seconds of the host's monotonic clock}, of
            the tasks that stand here and of the others together ("").
        num_inside: Jobs that somebody waits for, and those that nobody waits for any more and the run has not dropped yet.
        num_bytes: Bytes of the payloads of all that are inside.
        soon: Calls a function when all requests that are there by now have been read, so that their jobs go in together.
        after_reading: The same, for jobs that come alone: calls it at once where no other request is there.
    """

    is_endless = True

    def __init__(self, clock: Clock | None = None) -> None:
        self.on_ready: Callable[[], object] = lambda: None
        self.on_stopping: Callable[[], object] = lambda: None
        self.may_leave: Callable[[], bool] = lambda: True
        self.plan_id = ""
        self.tells_failures = True
        self.refused: Callable[[], Mapping[str, int]] = dict
        self.tally = RequestTally()
        self.answered_at: dict[str, float] = {}
        self.soon: Callable[[Callable[[], object]], object] = lambda call: call()
        self.after_reading: Callable[[Callable[[], object]], object] = self.soon
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._receivers = Parking(self._lock)
        self._waiting: deque[RequestJob] = deque()
        self._again: list[tuple[float, int, RequestJob]] = []
        self._asked: dict[int, RequestJob] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self.num_inside = self.num_bytes = 0
        self._open: dict[tuple[str, int], int] = {}
        self._max_attempts = 1
        self._is_over = False
        self._was_asked = False
        self._push: Callable[[Sequence[Job]], object] | None = None
        self._first_waiting: RequestJob | None = None

    @property
    def num_waiting(self) -> int:
        """Jobs that no receiver has taken."""
        return len(self._waiting)

    def count_open(self, task: str | None, priority: int = 1) -> int:
        """Return how many jobs somebody waits for, of a task (None: of all) and of a priority or a higher one."""
        if task is None and priority:
            return len(self._asked)
        numbers = list(self._open.items())  # copied at once: others change it
        return sum([num for (of, prior), num in numbers if prior <= priority and task in (None, of)])

    @property
    def num_open(self) -> int:
        """Jobs that somebody waits for."""
        return len(self._asked)

    # --- called by the door

    def put(self, job_id: str, work: Work) -> RequestJob:
        """Let a job in, and return it; it ends at once where the run is over."""
        work.received_ns = work.received_ns or self._clock.now_ns()
        job = RequestJob(job_id, next(self._numbers), work, self._settle, self._max_attempts)
        refused = self._enter(job)
        with self._lock:
            self._asked[job.number] = job
            self.num_bytes += job.num_bytes
            self.num_inside += 1
            self._count(job, 1)
            if work.deadline_ns is not None:
                heapq.heappush(self._deadlines, (work.deadline_ns + _LATE_NS, job.number))
            is_first = not self._waiting
            refused = refused or (_stopping(job) if self._is_over else None)
            if refused is None:
                self._waiting.append(job)
                if self._push is None:
                    self._receivers.call()
        if refused is not None:
            self._end_unrun(job, refused)
        elif is_first and self._push is not None:
            (self.soon if work.has_company else self.after_reading)(self._push_waiting)
        return job

    def drop(self, job: RequestJob) -> None:
        """Note that nobody waits for a job any more."""
        job.cancelled = True
        if self._forget(job):
            self._note_end(job, _GONE)

    # --- called by the run

    def open(self, settings: SourcePlan) -> None:
        """Make ready: tries of one job are one unless the Plan says otherwise, as its client can try again."""
        self._max_attempts = settings.max_receives or 1

    def push_to(self, push: Callable[[Sequence[Job]], object]) -> None:
        """Let jobs in at once from now on."""
        self._push = push
        self._was_asked = True
        self.on_ready()

    def _call_receiver(self) -> None:
        if self._push is None:
            self._receivers.call()

    def _push_waiting(self) -> None:
        """Let in what came since."""
        if self._push is None or not self._waiting:
            return
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        if jobs := self._let_in(waiting):
            self._push(jobs)

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs, [] if none came within wait_seconds."""
        if not self._was_asked:
            self._was_asked = True
            self.on_ready()
        jobs: list[Job] = []
        with self._lock:
            if (not self._waiting or self._push is not None) and not self._is_over:
                self._receivers.wait(wait_seconds)
            while self._push is None and self._waiting and len(jobs) < limit:
                jobs.append(self._waiting.popleft())
            if self._waiting:
                self._call_receiver()
        return list(self._let_in(jobs))

    def may_stop(self) -> bool:
        """Return whether everybody was told that it ends."""
        return self.may_leave()

    def stop(self) -> None:
        """End the jobs that were not received: nothing more will be."""
        self.on_stopping()
        with self._lock:
            self._is_over = True
            left = [*self._waiting, *(job for *_, job in self._again)]
            self._waiting.clear()
            self._again.clear()
            self._receivers.call_all()
        for job in left:
            self._end_unrun(job, _stopping(job))

    def tend(self) -> None:
        """Offer again what is due, and answer those whose time is over."""
        now = self._clock.now_ns()
        late: list[RequestJob | None] = []
        with self._lock:
            while self._again and self._again[0][0] <= now:
                self._waiting.append(heapq.heappop(self._again)[-1])
                self._call_receiver()
            while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][1] not in self._asked):
                late.append(self._asked.get(heapq.heappop(self._deadlines)[1]))
            first = self._waiting[0] if self._waiting else None
            is_left, self._first_waiting = first is not None and first is self._first_waiting, first
        if is_left:  # what came just now goes in together with all that is being read
            self._push_waiting()
        for job in late:
            if job is not None:
                self._end(
                    job, self._failed(job, "deadline.passed: the request's deadline passed before it was answered")
                )

    def backlog(self) -> QueueStatistics:
        """Return how much waits and is in flight."""
        waiting = len(self._waiting)
        return QueueStatistics(waiting, len(self._asked) - waiting, len(self._again), 0, None)

    def notes(self) -> dict[str, int]:
        """Return how many requests never became jobs: `refused.serve.busy`, ...; and how long the answers took."""
        return {**{f"{REFUSED}{code}": number for code, number in self.refused().items()}, **self.tally.notes()}

    def close(self) -> None:
        """Answer everybody who still waits."""
        self.stop()
        for job in list(self._asked.values()):
            self._end(job, _stopping(job))

    # --- what a source that several processes share does otherwise

    def _enter(self, job: RequestJob) -> Ended | None:
        """Note a job that came; return why it may not run."""
        return None

    def _let_in(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return those of the jobs that may run now."""
        return jobs

    def _wake_receivers(self) -> None:
        with self._lock:
            self._receivers.call_all()

    # --- how jobs end

    def _settle(self, job: Job, outcome: Outcome) -> None:
        if not isinstance(job, RequestJob):
            raise TypeError(f"expected a job of this source, got {type(job).__name__}")
        if outcome.kind is OutcomeKind.RETRY and self._offer_again(job, outcome.delay_seconds):
            return
        if outcome.kind is OutcomeKind.DELIVERED:
            ended = Ended(job.id, job.result, plan_id=job.plan_id or self.plan_id)
            # Of a module that is alone any task will do, and clients name what tasks they like.
            self.answered_at[job.task if job.task in self.answered_at else ""] = self._clock.now_ns() / 1e9
        elif outcome.kind is OutcomeKind.RETURNED:
            ended = _stopping(job)
        else:
            rejected = outcome.kind is OutcomeKind.REJECTED
            ended = self._failed(job, outcome.reason, 422 if rejected else _OUR_FAULT)
        self._end_unrun(job, ended)

    def _failed(self, job: Job, reason: str, otherwise: int = _OUR_FAULT) -> Ended:
        code, _ = parse_reason(reason, job.id)
        code = code if "." in code else "serve.failed"
        status = status_of(code, otherwise)
        if status == _OUR_FAULT and not self.tells_failures:
            reason = f"the pipeline failed at this item; the server's log says why (job {job.id})"
        # Escaped here, once: what is no Unicode can neither be kept, nor sent by any protocol.
        return Ended(job.id, code=as_unicode(code), reason=as_unicode(reason[:LONGEST_REASON]), status=status)

    def _offer_again(self, job: RequestJob, delay_seconds: float) -> bool:
        """Let a job have another try, if it has one left and time for it."""
        due = self._clock.now_ns() + round(delay_seconds * 1e9)
        is_late = job.deadline_ns is not None and due >= job.deadline_ns
        if job.attempt >= self._max_attempts or job.cancelled or is_late:
            return False
        again = RequestJob(job.id, job.number, job.work, self._settle, self._max_attempts)
        again.attempt = job.attempt + 1
        with self._lock:
            if self._is_over or self._asked.get(job.number) is not job:
                return False
            self._asked[job.number] = again
            heapq.heappush(self._again, (due, job.number, again))
        return self._enter(again) is None

    def _end_unrun(self, job: RequestJob, ended: Ended) -> None:
        """End a job that neither the run nor a list has any more: now its memory is free, whoever waited for it."""
        with self._lock:
            job.is_settled = True
            if self._asked.get(job.number) is not job:
                self._release(job)
        self._end(job, ended)

    def _release(self, job: RequestJob) -> None:
        self.num_bytes -= job.num_bytes
        self.num_inside -= 1

    def _end(self, job: RequestJob, ended: Ended) -> None:
        if not self._forget(job):
            return
        self._note_end(job, ended.status)
        try:
            job.work.on_end(ended)
        except Exception:  # of one answer: the run and all other answers go on
            logger.exception("the answer to job %s could not be made", job.id)

    def _note_end(self, job: RequestJob, status: int) -> None:
        if not job.work.is_own:
            self.tally.note_end(status, (self._clock.now_ns() - job.work.received_ns) / 1e9)

    def _count(self, job: RequestJob, change: int) -> None:
        key = (job.task, job.priority)
        num = self._open.get(key, 0) + change
        if num:
            self._open[key] = num
        else:
            del self._open[key]  # clients name what tasks they like

    def _forget(self, job: RequestJob) -> bool:
        """Return whether somebody waited for a job until now."""
        with self._lock:
            if self._asked.get(job.number) is not job:
                return False
            del self._asked[job.number]
            self._count(job, -1)
            if job.is_settled:
                self._release(job)
            return True


def _stopping(job: Job) -> Ended:
    return Ended(job.id, code=_STOPPED, reason="the service is stopping; try again", status=status_of(_STOPPED))
