"""The API in front of a queue: takes a job, stores it, and answers 202; workers elsewhere do it.

How this works: handlers put jobs into a list and return; one thread stores what has come together with one call of the queue
and answers. A request is answered with 202 only when its job is stored. A queue that is slow holds up that thread, but no
client: whoever has waited for as long as its deadline allows, or ten seconds, is answered 503 by a timer of the front. What is
answered so before it was sent is not sent any more.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import queue as waiting
import signal
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BadMessage, QueueUnavailable, SourceError
from headrace.base.protocols import Queue
from headrace.base.records import Job
from headrace.base.request_tally import RequestTally
from headrace.pipeline.end_signals import end_signals
from headrace.serve.http.request import Answer, Request, error_answer, json_answer
from headrace.serve.http.routes import Routes
from headrace.serve.jobs_api import CallLater, read_job, refuse_message
from headrace.serve.openapi.document import add_openapi
from headrace.serve.openapi.operations import QUEUED
from headrace.serve.service import ServeSettings, count_refusals, make_front, tells_failures
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job

logger = logging.getLogger("headrace")

_MOST_AT_ONCE = 100
_STORED = "stored"
#: In the place of a status: nobody waited for it.
_GONE = 499
#: Watches a service: called with what takes its requests, and what returns {code: requests that were refused so far}.
Watch = Callable[["QueueApi", Callable[[], dict[str, int]]], AbstractContextManager[object]]
#: How often an idle service asks the queue how it is.
_LOOK_SECONDS = 5.0
#: How long a client waits for its job to be stored, unless it says less, and how often it is seen who waited for too long.
_ANSWER_SECONDS, _TICK_SECONDS = 10.0, 0.1


class QueueApi:
    """The routes in front of a queue; a context manager that ends once all is stored.

    Args:
        queue: Where jobs go.
        most_waiting: Jobs that wait to be stored; more are refused.
        call_later: Of the front.
        tells_failures: Whether clients are told why the queue takes no job, with its address; the log always says it.
        clock: For deadlines.

    Attributes:
        counts: {why: how many requests were refused}, with `stored` for the others.
        tally: How requests ended so far.
    """

    def __init__(
        self,
        queue: Queue,
        most_waiting: int,
        call_later: CallLater,
        *,
        tells_failures: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.tally = RequestTally()
        self._clock = clock or SystemClock()
        self._call_later = call_later
        self._overdue: list[tuple[int, int, weakref.ref[Request]]] = []
        self._numbers = itertools.count()
        self._queue = queue
        self._most_waiting = most_waiting
        self._tells_failures = tells_failures
        self._waiting: waiting.SimpleQueue[tuple[Request, str, bytes] | None] = waiting.SimpleQueue()
        self._trouble = ""
        self._thread = threading.Thread(target=self._store_all, name="sender", daemon=True)

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("POST", "/v1/jobs", self.post)
        routes.add("GET", "/v1/jobs/{queued_id*}", _tell_where_results_go)
        routes.add("GET", "/livez", lambda request: json_answer(200, {"status": "live"}))
        routes.add("GET", "/readyz", self.ready)

    def __enter__(self) -> QueueApi:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    @property
    def num_open(self) -> int:
        """Jobs that wait to be stored."""
        return self._waiting.qsize()

    @property
    def refused(self) -> dict[str, int]:
        """{code: how many requests were refused}."""
        return {code: num for code, num in dict(self.counts).items() if code != _STORED}

    def post(self, request: Request) -> Answer | None:
        """Take a job."""
        refused = self._let_in(request)
        if refused is not None:
            self.tally.note_refused(refused.status)
        return refused

    def _let_in(self, request: Request) -> Answer | None:
        """Have a job stored; return why it is not."""
        if self._waiting.qsize() >= self._most_waiting:
            return self._refuse(429, "serve.busy", f"{self._most_waiting:,} jobs wait to be stored in the queue", 1)
        try:
            job = read_job(request, self._clock)
            body = _encode(job, self._clock)
        except BadMessage as error:
            self.counts[error.code] += 1
            return refuse_message(error)
        self._watch_over(request, job.deadline_ns)
        self._waiting.put((request, job.id, body))
        return None

    def _watch_over(self, request: Request, deadline_ns: int | None) -> None:
        """Have a request answered in time, in the front's thread."""
        due_ns = self._clock.now_ns() + round(_ANSWER_SECONDS * 1e9)
        due_ns = due_ns if deadline_ns is None else min(due_ns, deadline_ns)
        heapq.heappush(self._overdue, (due_ns, next(self._numbers), weakref.ref(request)))
        if len(self._overdue) == 1:
            self._call_later(_TICK_SECONDS, self._answer_overdue)

    def _answer_overdue(self) -> None:
        now_ns = self._clock.now_ns()
        while self._overdue and self._overdue[0][0] <= now_ns:
            request = heapq.heappop(self._overdue)[2]()
            if request is not None and not request.is_answered:
                why = "the queue did not take the job in time; it may be stored all the same: send it again with the same id"
                self._answer(request, self._refuse(503, "queue.slow", why, 5))
        if self._overdue:
            self._call_later(_TICK_SECONDS, self._answer_overdue)

    def _refuse(self, status: int, code: str, why: str, retry_seconds: int) -> Answer:
        self.counts[code] += 1
        return error_answer(status, code, why, ("Retry-After", str(retry_seconds)))

    def ready(self, request: Request) -> Answer:
        """Say whether jobs can be stored."""
        if self._trouble:
            return json_answer(503, {"status": "not ready", "reason": self._trouble})
        return json_answer(200, {"status": "ready"})

    def _store_all(self) -> None:
        while True:
            try:
                first = self._waiting.get(timeout=_LOOK_SECONDS)
            except waiting.Empty:
                self._look()
                continue
            if first is None:
                return
            try:
                self._store_with(first)
            except Exception:  # the next jobs are stored all the same; who waited for this one is answered by the timer
                logger.exception("the queue took no job")

    def _store_with(self, first: tuple[Request, str, bytes]) -> None:
        """Store a job, and with it what came meanwhile."""
        taken = [first]
        while len(taken) < _MOST_AT_ONCE and not self._waiting.empty():
            one = self._waiting.get()
            if one is None:
                self._waiting.put(None)
                break
            taken.append(one)
        self._store([one for one in taken if not one[0].is_answered])

    def _look(self) -> None:
        """See whether the queue answers: who heeds `/readyz` sends nothing by which it would show."""
        try:
            self._queue.statistics()
            self._trouble = ""
        except Exception as error:  # whatever it is: the thread goes on
            if not isinstance(error, SourceError):
                logger.exception("the queue does not answer")
            why = str(error) if self._tells_failures else "the server's log says why"
            self._trouble = f"the queue does not answer: {why}"

    def _store(self, taken: list[tuple[Request, str, bytes]]) -> None:
        if not taken:
            return
        try:
            self._queue.send([body for _, _, body in taken])
        except ValueError as error:  # one that this queue never takes, such as for its size; nothing was stored
            if len(taken) > 1:
                for one in taken:
                    self._store([one])
                return
            self.counts["message.refused"] += 1
            why = f"the queue never takes this job: {error}"
            self._answer(taken[0][0], error_answer(422, "message.refused", why))
            return
        except Exception as error:  # whatever it is, those who wait must hear of it
            is_known = isinstance(error, QueueUnavailable | SourceError)
            logger.error("the queue took no job: %s", error, exc_info=None if is_known else error)
            why = str(error) if self._tells_failures else "the server's log says why"
            self._trouble = f"the queue took no job: {why}"
            for request, _, _ in taken:
                self._answer(request, self._refuse(503, "queue.unavailable", self._trouble, 5))
            return
        self._trouble = ""
        self.counts[_STORED] += len(taken)
        for request, job_id, _ in taken:
            self._answer(request, json_answer(202, {"id": job_id, "state": "queued"}))

    def _answer(self, request: Request, answer: Answer) -> None:
        """Answer a request whose job was let in, once, and count how it ended."""
        is_gone = request.is_gone
        if request.answer(answer):
            seconds = (self._clock.now_ns() - request.received_ns) / 1e9
            self.tally.note_end(_GONE if is_gone else answer.status, seconds)


def serve_queue(
    address: str,
    settings: ServeSettings,
    max_requests: int,
    *,
    tell: Callable[[str], object],
    watch: Watch | None = None,
) -> dict[str, int]:
    """Take jobs over HTTP and put them into a queue, until SIGTERM or Ctrl-C.

    Returns:
        {why: how many requests were refused}, with `stored` for the others.

    Args:
        address: Of the queue.
        settings: Where to listen.
        max_requests: Requests whose jobs are not stored yet, at most.
        tell: Called with the address that is listened on.
        watch: Lives beside it.

    Raises:
        SettingsError: If one of the addresses cannot be used.
        SourceError: If the queue cannot be opened.
    """
    queue = open_queue(address)
    routes, is_over = Routes(), threading.Event()
    front = make_front(routes, settings)

    def end(number: int, frame: FrameType | None) -> None:
        is_over.set()

    before = {number: signal.signal(number, end) for number in end_signals()}
    try:
        api = QueueApi(queue, max_requests, front.call_later, tells_failures=tells_failures(settings))

        def refused() -> dict[str, int]:
            return {**count_refusals(front.counts), **api.refused}

        with watch(api, refused) if watch else contextlib.nullcontext(), api:
            api.add_to(routes)
            add_openapi(routes, (), has_token=settings.token is not None, instead=QUEUED)
            front.start()
            tell(front.url)
            is_over.wait()
            front.drain(settings.leave_seconds)
        return {**count_refusals(front.counts), **api.counts}
    finally:
        front.close()
        queue.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_where_results_go(request: Request, queued_id: str) -> Answer:
    """Refuse whoever asks how a job stands, as one may where the jobs are done by the service itself."""
    reason = (
        f"how job {queued_id:.100} stands is not known here: this service only puts jobs into a queue; the worker that does "
        "a job posts its result to the `callback` that the job names"
    )
    return error_answer(404, "serve.queued", reason)


def _encode(job: Job, clock: Clock) -> bytes:
    attributes = dict(job.attributes)
    callback = attributes.pop("callback", None)
    deadline = None
    if job.deadline_ns is not None:
        deadline = clock.unix_seconds() + (job.deadline_ns - clock.now_ns()) / 1e9
    if not isinstance(job.payload, bytes | str):
        raise BadMessage("message.payload: a job that comes over HTTP names a URL or carries its data, not a path")
    try:
        return encode_job(
            job.payload, id=job.id, task=job.task, callback=callback, attributes=attributes, deadline=deadline
        )
    except ValueError as error:
        raise BadMessage(f"message.field: {error}") from error
