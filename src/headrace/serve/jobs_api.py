"""`/v1/jobs`: an image, a form or a job's envelope comes in; the result goes back, now or later.

POST /v1/jobs                      the bytes of an image, a form with a file, or the JSON of a job in a queue
POST /v1/jobs?wait=2s              answers 202 with the job's id if the result is not there in time
POST /v1/jobs?timings=1             says in `Server-Timing` how long each stage took, and in how large a batch
POST /v1/jobs?priority=0           lets the job go before those of priority 1, the usual one
POST /v1/jobs  Prefer: respond-async   answers 202 at once, or after S seconds with `respond-async, wait=S`; a job that names
                                       a callback is answered so, too
GET  /v1/jobs/ID                   how it stands with a job that was answered 202

A parameter that is not one of these is refused: a misspelt one would be lost silently.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from urllib.parse import quote

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BadMessage, HeadraceError
from headrace.base.log_events import read_trace
from headrace.base.passage import Passage
from headrace.base.records import Job, Message, Payload
from headrace.base.units import parse_seconds
from headrace.delivery.encoding import encode
from headrace.serve.door import Ended, ForeseeingDoor, Refused, Work
from headrace.serve.forms import read_form
from headrace.serve.http.request import Answer, Request, error_answer, json_answer
from headrace.serve.http.routes import Routes
from headrace.serve.ids import make_id
from headrace.serve.kept_answers import Answers, KeptAnswer, KeptAnswers
from headrace.serve.npy import read_npy
from headrace.serve.server_timing import tell_timing
from headrace.serve.shared_source import digest
from headrace.serve.statuses import status_of
from headrace.serve.timeouts import read_deadline
from headrace.sources.jobs import decode_message, refuse_long
from headrace.stages.inputs import ArrayInput

logger = logging.getLogger("headrace")

_JSON, _FORM = "application/json", "multipart/form-data"
#: What names a job: parameters behind the question mark, or fields of a form.
JOB_FIELDS = ("id", "task", "callback")
#: What stands behind the question mark and is 0 or 1, and what each of these means.
_FLAGS = {
    "priority": {"0": "0, before all others", "1": "1, the usual one"},
    "timings": {"0": "0, the usual one", "1": "1, to be told how long each stage took"},
}
#: All that a request may have there beside `JOB_FIELDS`.
_PARAMETERS = ("wait", *_FLAGS)
_PREFERRED_WAIT = re.compile(r'wait *= *"?([0-9]{1,9})"?')
_HOW_JSON_COMES = "; it looks like JSON: send that as Content-Type: application/json, such as by `curl --json`"
#: A timer is kept for as long, whenever the answer comes.
_LONGEST_WAIT_SECONDS = 60.0
#: How often a second try looks for the answer to the first one, which another process may write.
_LOOK_SECONDS = 0.05
#: Of what may be there in a moment.
_LATER, _AGAIN = 503, ("Retry-After", "1")
#: Calls a function after so many seconds, in the front's thread.
CallLater = Callable[[float, Callable[[], object]], object]


class JobsApi:
    """The routes of jobs.

    Args:
        door: Where jobs go in.
        call_later: Of the front.
        calls_back: Whether jobs may name a receiver for their results.
        arrays: {task: what it takes} of those that take arrays.
        kept: Where answers are kept that nobody waited for; None: in this process.
        clock: For deadlines.
    """

    def __init__(
        self,
        door: ForeseeingDoor,
        call_later: CallLater,
        *,
        calls_back: bool,
        arrays: Mapping[str, ArrayInput] | None = None,
        kept: Answers | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._door = door
        self._call_later = call_later
        self._calls_back = calls_back
        self._arrays = arrays or {}
        self._clock = clock or SystemClock()
        self._kept = kept or KeptAnswers()
        self._told: tuple[Refused, Answer] | None = None

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("POST", "/v1/jobs", self.post, self.refuse_early)
        routes.add("GET", "/v1/jobs/{job_id*}", self.get)

    def refuse_early(self, request: Request) -> Answer | None:
        """Refuse a request by its head, where its job would not be let in: then nobody reads its body, which costs the most.

        Left to `post` is what says in its body what it is, and what may name a job that is inside already.
        """
        if not self._door.is_refusing:
            return None
        query, headers = request.query, request.headers
        if _read_kind(headers.get("content-type", "")) in (_JSON, _FORM):
            return None
        if "prefer" in headers or "wait" in query or "callback" in query:
            return None
        try:
            work = Work(
                payload=b"",
                on_end=_unasked,
                task=query.get("task", ""),
                deadline_ns=read_deadline(headers, request.received_ns),
                received_ns=request.received_ns,
                priority=_read_flag(query, "priority", "1") if query else 1,
            )
        except BadMessage:
            return None
        refused = self._door.foresee(work)
        if refused is None:
            return None
        if self._told is None or self._told[0] is not refused:
            self._told = refused, refusal(refused)
        return self._told[1]

    def post(self, request: Request) -> Answer | None:
        """Let a job in, and answer when it has ended or when the client wants to wait no longer."""
        try:
            job = read_job(request, self._clock, _PARAMETERS)
            query = request.query
            job.priority = _read_flag(query, "priority", "1") if query else 1
            wait_seconds = _read_wait(request, is_called_back="callback" in job.attributes)
            passages: list[Passage] | None = [] if query and _read_flag(query, "timings", "0") else None
            payload = read_npy(job.payload, self._arrays[job.task]) if job.task in self._arrays else job.payload
        except BadMessage as error:
            return refuse_message(error)
        if "callback" in job.attributes and not self._calls_back:
            return error_answer(
                400,
                "message.callback",
                "this service calls nobody back; leave `callback` out, or give its pipeline delivery=headrace.callback()",
            )
        return self._submit(request, job, payload, wait_seconds, passages)

    def get(self, request: Request, job_id: str) -> Answer:
        """Return how it stands with a job that was answered 202."""
        found = self._kept.find(job_id)
        if found is None:
            return error_answer(
                404, "serve.unknown_job", f"no job {job_id:.100} is kept here; answers are kept for a while"
            )
        if found.is_lost:
            return _lost(job_id)
        return json_answer(200, {"id": job_id, "state": "working"}) if found.ended is None else _answer(found.ended)

    def _submit(
        self, request: Request, job: Job, payload: Payload, wait_seconds: float | None, passages: list[Passage] | None
    ) -> Answer | None:
        try:
            kept = None if wait_seconds is None else self._kept.open(job.id, _content_of(job))
        except OSError as error:
            logger.error("no place can be kept for the answer to job %.100s: %s", job.id, error)
            return _no_room()
        if kept is not None and kept.is_another:
            return error_answer(
                409, "serve.id_taken",
                f"job {job.id:.100} came with another content before, and its answer is kept; give each job an id of its own",
            )  # fmt: skip
        if kept is not None and not kept.is_new:  # a second try of the same request
            return self._answer_again(request, job.id, kept, wait_seconds or 0.0)
        looks_like_json = isinstance(payload, bytes) and payload[:1] == b"{"
        work = Work(
            payload=payload,
            on_end=partial(
                self._ended, request, job.id, passages, is_kept=kept is not None, looks_like_json=looks_like_json
            ),
            prepare=encode,
            id=job.id,
            task=job.task,
            attributes=job.attributes,
            deadline_ns=job.deadline_ns,
            received_ns=request.received_ns,
            priority=job.priority,
            passages=passages,
        )
        ticket = self._door.submit(work)
        if isinstance(ticket, Refused):
            if kept is not None:
                self._kept.drop(job.id)
            return refusal(ticket)
        if wait_seconds == 0:
            return _accepted(ticket.id)
        if wait_seconds is not None:
            self._call_later(wait_seconds, partial(_say_accepted, weakref.ref(request), ticket.id))
        else:
            request.call_when_gone(ticket.cancel)
        return None

    def _answer_again(self, request: Request, job_id: str, found: KeptAnswer, wait_seconds: float) -> Answer | None:
        """Answer the second try of a request, which waits as long as the first one would."""
        if found.ended is not None and wait_seconds:
            return _answer(found.ended)
        if not wait_seconds:
            return _accepted(job_id)
        step = min(_LOOK_SECONDS, wait_seconds)
        self._call_later(step, partial(self._look_again, request, job_id, wait_seconds - step))
        return None

    def _look_again(self, request: Request, job_id: str, wait_seconds: float) -> None:
        if request.is_gone:
            return
        try:
            found = self._kept.find(job_id)
        except OSError as error:  # no descriptor is left, or the folder cannot be read any more
            logger.error("the answer to job %.100s cannot be looked for: %s", job_id, error)
            request.answer(_no_room())
            return
        if found is None or found.is_lost:  # None: the first try was not let in after all
            request.answer(_lost(job_id))
        elif found.ended is not None:
            request.answer(_answer(found.ended))
        elif (answer := self._answer_again(request, job_id, found, wait_seconds)) is not None:
            request.answer(answer)

    def _ended(
        self,
        request: Request,
        job_id: str,
        passages: list[Passage] | None,
        ended: Ended,
        *,
        is_kept: bool,
        looks_like_json: bool,
    ) -> None:
        if looks_like_json and ended.code == "decode.format":
            ended = msgspec.structs.replace(ended, reason=ended.reason + _HOW_JSON_COMES)
        if is_kept:
            try:
                self._kept.close(job_id, ended)
            except Exception:  # whoever waits for the answer itself gets it all the same
                logger.exception("the answer to job %.100s cannot be kept", job_id)
        try:
            timing = [] if passages is None else [tell_timing(passages, self._clock.now_ns() - request.received_ns)]
            answer = _answer(ended, *timing)
        except Exception:  # such as no memory for it: the client is to hear of something
            logger.exception("the answer to job %.100s could not be made", job_id)
            answer = error_answer(500, "serve.answer", "the answer could not be made; the server's log says why")
        request.answer(answer)


def _say_accepted(waiting: weakref.ref[Request], job_id: str) -> None:
    """Answer a request that waited long enough, if it was not answered and forgotten since."""
    request = waiting()
    if request is not None:
        request.answer(_accepted(job_id))


def _no_room() -> Answer:
    return error_answer(503, "serve.no_room", "the answer could not be kept for you; try again, or wait for it", _AGAIN)


def _lost(job_id: str) -> Answer:
    """Return the answer about a job that nobody works on."""
    reason = f"the process that worked on job {job_id:.100} is gone, and the job with it; send it again"
    return error_answer(503, "serve.lost", reason, _AGAIN)


def refusal(refused: Refused) -> Answer:
    """Return the answer to work that was not let in."""
    retry = ("Retry-After", str(max(1, round(refused.retry_after_seconds))))
    return error_answer(refused.status, refused.code, refused.reason, retry)


def refuse_message(error: BadMessage) -> Answer:
    """Return the answer to a request that carries no job."""
    if error.code != "message.coding":
        return error_answer(status_of(error.code), error.code, error.reason)
    return error_answer(status_of(error.code), error.code, error.reason, ("Accept-Encoding", "identity"))


def read_job(request: Request, clock: Clock, parameters: Collection[str] = ()) -> Job:
    """Return the job that a request carries, with an id of its own unless it names one, and the deadline that its client has.

    Args:
        request: As it came.
        clock: For deadlines.
        parameters: That the request may have beside `JOB_FIELDS`.

    Raises:
        BadMessage: If it is none.
    """
    headers = request.headers
    if "content-encoding" in headers:
        _refuse_coding(request)
    if request.query:
        _refuse_unknown("parameter", request.query, (*JOB_FIELDS, *parameters))
        if (repeated := request.find_repeated()) is not None:
            raise BadMessage(
                f"message.parameter: {repeated} stands more than once behind the question mark; expected once"
            )
    job = _read_body(request, clock)
    if "traceparent" in headers:
        job.attributes = {**job.attributes, **read_trace(headers)}
    deadline_ns = read_deadline(headers, request.received_ns or clock.now_ns())
    if deadline_ns is not None:
        job.deadline_ns = deadline_ns if job.deadline_ns is None else min(deadline_ns, job.deadline_ns)
    return job


def _read_body(request: Request, clock: Clock) -> Job:
    query, headers = request.query, request.headers
    kind, named = _read_kind(headers.get("content-type", "")), headers.get("idempotency-key")
    if kind == _JSON:
        if beside := [name for name in JOB_FIELDS if query.get(name)]:
            raise BadMessage(
                f"message.parameter: {beside[0]} stands in the JSON of a job, not behind the question mark"
            )
        refuse_long({"id": named})
        return decode_message(Message(named or make_id(), bytes(request.body), "", 1, 0.0), clock=clock)
    fields: Mapping[str, str] = query
    payload = bytes(request.body)
    if kind == _FORM:
        form, payload = read_form(request.header("content-type"), payload)
        _refuse_unknown("field of a form", form, JOB_FIELDS)
        fields = {**query, **form}
    if not payload:
        raise BadMessage(
            "message.payload: the body is empty; expected the bytes of an image, a form with a file, or JSON with url or data"
        )
    job_id, attributes = fields.get("id") or named or make_id(), {}
    refuse_long({"id": job_id, "task": fields.get("task"), "callback": fields.get("callback")})
    if fields.get("callback"):
        attributes = {"callback": fields["callback"]}
    return Job(job_id, payload, task=fields.get("task", ""), attributes=attributes)


@lru_cache(maxsize=256)  # most requests have the same few
def _read_kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _refuse_coding(request: Request) -> None:
    coding = request.header("content-encoding").strip().lower()
    if coding not in ("", "identity"):
        raise BadMessage(
            f"message.coding: the body is encoded as {coding:.40}; send it as it is, without Content-Encoding"
        )


def _refuse_unknown(what: str, given: Mapping[str, str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise BadMessage(f"message.parameter: there is no {what} {name!r:.60}; there is {', '.join(known)}")


def _content_of(job: Job) -> str:
    """Return what two tries of one request have in common."""
    return digest(encode([job.task, job.attributes]).decode(), job.payload)


def _read_wait(request: Request, *, is_called_back: bool) -> float | None:
    """Return how long the client waits before it takes an id instead of the result; None: as long as it takes."""
    query = request.query
    text = query.get("wait") if query else None
    if text is not None:
        try:
            seconds = parse_seconds(text)
        except (HeadraceError, ValueError) as error:
            raise BadMessage(f"message.wait: wait={text!r:.40} is no duration, such as 2s or 500ms: {error}") from error
        if seconds > _LONGEST_WAIT_SECONDS:
            raise BadMessage(
                f"message.wait: wait={text!r:.40} is more than {_LONGEST_WAIT_SECONDS:.0f}s; leave it out to wait to the end"
            )
        return seconds
    return 0.0 if is_called_back else _read_preference(request.headers.get("prefer", ""))


def _read_preference(text: str) -> float | None:
    """Return how long a client waits that prefers `respond-async`, or `respond-async, wait=SECONDS` (RFC 7240)."""
    if not text:
        return None
    wishes = {wish.partition(";")[0].strip() for wish in text.lower().split(",")}
    if "respond-async" not in wishes:
        return None
    times = [int(found[1]) for wish in wishes if (found := _PREFERRED_WAIT.fullmatch(wish))]
    return float(min([*times, _LONGEST_WAIT_SECONDS])) if times else 0.0


def _unasked(ended: Ended) -> None:
    """Hear of no end: what is only foreseen has none."""


def _read_flag(query: Mapping[str, str], name: str, usual: str) -> int:
    text = query.get(name, usual)
    if text not in _FLAGS[name]:
        raise BadMessage(f"message.{name}: {name}={text!r:.40}; expected {' or '.join(_FLAGS[name].values())}")
    return int(text)


def _accepted(job_id: str) -> Answer:
    place = f"jobs/{quote(job_id, safe='')}"  # beside /v1/jobs, wherever an application has mounted that
    return json_answer(202, {"id": job_id, "state": "working"}, ("Location", place))


def _answer(ended: Ended, *headers: tuple[str, str]) -> Answer:
    if ended.plan_id:
        headers = (("X-Headrace-Plan", ended.plan_id), *headers)
    if ended.status == _LATER:
        headers = (_AGAIN, *headers)
    if ended.code:
        return error_answer(ended.status, ended.code, ended.reason, *headers)
    return json_answer(200, {"id": ended.id, "result": msgspec.Raw(ended.result)}, *headers)
