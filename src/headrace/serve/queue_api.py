"""The API in front of a queue: takes a job, stores it, and answers 202; workers elsewhere do it.

How this works: handlers put jobs into a list and return; one thread stores what has come together with one call of the queue
and answers. A request is answered only when its job is stored.
"""

from __future__ import annotations

import logging
import queue as waiting
import signal
import threading
from collections.abc import Callable
from types import FrameType

from headrace.base.clock import SystemClock
from headrace.base.errors import BadMessage, QueueUnavailable, SourceError
from headrace.base.protocols import Queue
from headrace.base.records import Job
from headrace.serve.http.request import Answer, Request, error_answer, json_answer
from headrace.serve.http.routes import Routes
from headrace.serve.jobs_api import read_job
from headrace.serve.openapi.document import add_openapi
from headrace.serve.service import ServeSettings, make_front, tells_failures
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job

logger = logging.getLogger("headrace")

_MOST_AT_ONCE = 100
#: How often an idle service asks the queue how it is.
_LOOK_SECONDS = 5.0
_CLOCK = SystemClock()


class QueueApi:
    """The routes in front of a queue; a context manager that ends once all is stored.

    Args:
        queue: Where jobs go.
        most_waiting: Jobs that wait to be stored; more are refused.
        tells_failures: Whether clients are told why the queue takes no job, with its address; the log always says it.
    """

    def __init__(self, queue: Queue, most_waiting: int, *, tells_failures: bool = True) -> None:
        self._queue = queue
        self._most_waiting = most_waiting
        self._tells_failures = tells_failures
        self._waiting: waiting.SimpleQueue[tuple[Request, str, bytes] | None] = waiting.SimpleQueue()
        self._trouble = ""
        self._thread = threading.Thread(target=self._store_all, name="sender", daemon=True)

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("POST", "/v1/jobs", self.post)
        routes.add("GET", "/livez", lambda request: json_answer(200, {"status": "live"}))
        routes.add("GET", "/readyz", self.ready)

    def __enter__(self) -> QueueApi:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    def post(self, request: Request) -> Answer | None:
        """Take a job."""
        if self._waiting.qsize() >= self._most_waiting:
            return error_answer(
                429, "serve.busy", f"{self._most_waiting:,} jobs wait to be stored in the queue", ("Retry-After", "1")
            )
        try:
            job = read_job(request, _CLOCK)
            body = _encode(job)
        except BadMessage as error:
            return error_answer(413 if error.code == "message.size" else 400, error.code, error.reason)
        self._waiting.put((request, job.id, body))
        return None

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
            taken = [first]
            while len(taken) < _MOST_AT_ONCE and not self._waiting.empty():
                one = self._waiting.get()
                if one is None:
                    self._waiting.put(None)
                    break
                taken.append(one)
            self._store(taken)

    def _look(self) -> None:
        """See whether the queue answers: who heeds `/readyz` sends nothing by which it would show."""
        try:
            self._queue.statistics()
            self._trouble = ""
        except SourceError as error:
            self._trouble = f"the queue does not answer: {error}"

    def _store(self, taken: list[tuple[Request, str, bytes]]) -> None:
        try:
            self._queue.send([body for _, _, body in taken])
        except Exception as error:  # whatever it is, those who wait must hear of it
            is_known = isinstance(error, QueueUnavailable | SourceError)
            logger.error("the queue took no job: %s", error, exc_info=None if is_known else error)
            why = str(error) if self._tells_failures else "the server's log says why"
            self._trouble = f"the queue took no job: {why}"
            answer = error_answer(503, "queue.unavailable", self._trouble, ("Retry-After", "5"))
            for request, _, _ in taken:
                request.answer(answer)
            return
        self._trouble = ""
        for request, job_id, _ in taken:
            request.answer(json_answer(202, {"id": job_id, "state": "queued"}))


def serve_queue(address: str, settings: ServeSettings, max_requests: int, *, tell: Callable[[str], object]) -> None:
    """Take jobs over HTTP and put them into a queue, until SIGTERM or Ctrl-C.

    Args:
        address: Of the queue.
        settings: Where to listen.
        max_requests: Requests whose jobs are not stored yet, at most.
        tell: Called with the address that is listened on.

    Raises:
        SettingsError: If one of the addresses cannot be used.
        SourceError: If the queue cannot be opened.
    """
    queue = open_queue(address)
    routes, is_over = Routes(), threading.Event()
    front = make_front(routes, settings)

    def end(number: int, frame: FrameType | None) -> None:
        is_over.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with QueueApi(queue, max_requests, tells_failures=tells_failures(settings)) as api:
            api.add_to(routes)
            add_openapi(routes, (), has_token=settings.token is not None)
            front.start()
            tell(front.url)
            is_over.wait()
            front.drain(settings.leave_seconds)
    finally:
        front.close()
        queue.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _encode(job: Job) -> bytes:
    attributes = dict(job.attributes)
    callback = attributes.pop("callback", None)
    deadline = None
    if job.deadline_ns is not None:
        deadline = _CLOCK.unix_seconds() + (job.deadline_ns - _CLOCK.now_ns()) / 1e9
    if not isinstance(job.payload, bytes | str):
        raise BadMessage("message.payload: a job that comes over HTTP names a URL or carries its data, not a path")
    try:
        return encode_job(
            job.payload, id=job.id, task=job.task, callback=callback, attributes=attributes, deadline=deadline
        )
    except ValueError as error:
        raise BadMessage(f"message.field: {error}") from error
