"""The records that folders hand to one another: Job, Outcome, Span, Message and the statistics of queues.

A Job is the envelope of one unit of work; a Span is one row per item and stage (its columns are binding, see
`docs/design.md`); a Message is one delivery of a job by a queue service.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.error_origin import Origin
from headrace.base.passage import Passage
from headrace.base.pieces import Piece, RemotePiece

#: What a job may carry: an address, a path, a part of a file or object, bytes already at hand, or an array.
Payload = str | bytes | Path | Piece | RemotePiece | np.ndarray


class OutcomeKind(StrEnum):
    """How one delivery of a job ended."""

    DELIVERED = "delivered"
    """The result was delivered; the job is done."""
    REJECTED = "rejected"
    """No retry can help; the job is done."""
    DEAD_LETTERED = "dead_lettered"
    """Retries are used up; the job is done."""
    RETRY = "retry"
    """Failed for now; the source offers the job again."""
    RETURNED = "returned"
    """Nothing failed, or nothing that the job is to blame for; the source offers the job again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a source about one delivery of a job."""

    kind: OutcomeKind
    reason: str = ""
    """Stage, item, cause and what to do; empty when delivered."""
    delay_seconds: float = 0.0
    """For RETRY and RETURNED: how long the source should hold the job back."""
    undelivered: bool = False
    """Only the delivery failed; the item itself is fine."""
    kept: bytes = b""
    """An undelivered result that the source keeps with the job, so that it can be delivered later, or after a redrive, without
    being computed again. With RETRY only the delivery is repeated."""
    kept_brief: bytes = b""
    """`kept` without the result: since when, and how often. Kept if the result is too large for the source."""
    origin: Origin | None = None
    """Place in the user's code that failed; None if no code of the user was involved."""
    excused: bool = False
    """With RETURNED: the job was not to blame for the failure, so the try does not count."""
    spared: bool = False
    """With RETRY or RETURNED: nothing was tried. A source that can offers the job again as if it was new."""

    @property
    def is_put_aside(self) -> bool:
        """Whether the job only waits for its turn, at its source: nothing failed."""
        return self.kind is OutcomeKind.RETURNED and self.spared


DELIVERED = Outcome(OutcomeKind.DELIVERED)


class Job:
    """The envelope of one unit of work.

    Attributes:
        id: The job's own id, unique in its source and stable over redeliveries; the idempotency key of its delivery.
        payload: What to work on: URL, path, bytes or array.
        task: Which module of the pipeline; empty for the only one.
        attributes: What the sender added: `callback` (URL), `label`, ... passed on untouched.
        stream: Name of the stream that a frame belongs to; None for single images.
        sequence: Position in the stream or the source.
        deadline_ns: On the run's clock; None for none.
        priority: 0 goes before 1, the usual one, in the queue of every stage; see `pipeline.two_lines`.
        attempt: 1 for the first delivery.
        max_attempts: The delivery after which a failure is final; None where the source never gives up.
        sent_at: When it was sent, Unix seconds by the queue's clock; set by sources that know it, None elsewhere.
        plan_id: Of the Plan that works on it; set by the runtime.
        passages: Takes a note of each passage through a stage; None, the usual case: nobody asked.
        on_work: Called with 1 when a stage begins to work on it and with -1 when the stage ends; None: not called.
        kept: A result that an earlier delivery of the job could not deliver; empty for none. Set by sources that keep it.
        keeps_results: Whether the source keeps a result that comes with an outcome, and counts no delivery for it.
        is_leftover: Whether it was put aside and comes after all others, so that many failures in a row mean little.
        may_wait: Whether the source can offer it again later as if it was new, if nothing was tried.
        verdict: Outcome of a job that may reach no stage; set by the source. None: it is worked on.
        lost: Set by the source when another worker may have the job by now (its lease ran out); work on it is dropped.
        cancelled: Set by the source when nobody waits for the answer any more; work on it is dropped.
        twin: How far the answer of a model that runs beside (a shadow, a canary) differs from 0 to 1, once that is known; None:
            not comparable. An empty list: it is being asked. None: no such model was asked.
    """

    __slots__ = (
        "_settle",
        "attempt",
        "attributes",
        "cancelled",
        "deadline_ns",
        "id",
        "is_leftover",
        "keeps_results",
        "kept",
        "lost",
        "max_attempts",
        "may_wait",
        "on_work",
        "passages",
        "payload",
        "plan_id",
        "priority",
        "sent_at",
        "sequence",
        "stream",
        "task",
        "twin",
        "verdict",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - the field's name in every queue
        payload: Payload,
        *,
        task: str = "",
        attributes: Mapping[str, Any] | None = None,
        stream: str | None = None,
        sequence: int = 0,
        deadline_ns: int | None = None,
        attempt: int = 1,
        max_attempts: int | None = None,
        settle: Callable[[Job, Outcome], None] | None = None,
    ) -> None:
        self.id = id
        self.payload = payload
        self.task = task
        self.attributes = attributes or {}
        self.stream = stream
        self.sequence = sequence
        self.deadline_ns = deadline_ns
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.priority = 1
        self.sent_at: float | None = None
        self.plan_id = ""
        self.passages: list[Passage] | None = None
        self.on_work: Callable[[int], None] | None = None
        self.kept = b""
        self.keeps_results = False
        self.is_leftover = self.may_wait = False
        self.lost = self.cancelled = False
        self.verdict: Outcome | None = None
        self.twin: list[float | None] | None = None
        self._settle = settle or _ignore

    def settle(self, outcome: Outcome) -> None:
        """Tell the source how this delivery ended; the runtime calls it exactly once.

        Raises:
            RuntimeError: If it was called before: a bug of the runtime, never of a user's stage.
        """
        settle, self._settle = self._settle, _refuse_second_settle
        settle(self, outcome)

    def intercept_settle(self, settle: Callable[[Job, Outcome], None]) -> Callable[[Outcome], None]:
        """Replace the receiver of the outcome, and return a function that answers the source instead."""
        answer, self._settle = self._settle, settle
        return functools.partial(answer, self)

    def __repr__(self) -> str:
        return f"Job({self.id!r}, task={self.task!r}, attempt={self.attempt})"


def _ignore(job: Job, outcome: Outcome) -> None:
    """Do nothing: the source needs no answer."""


def _refuse_second_settle(job: Job, outcome: Outcome) -> None:
    raise RuntimeError(f"job {job.id} was settled twice; the second outcome was {outcome.kind}: report this as a bug")


class Span(msgspec.Struct, gc=False):
    """One row per unit and stage; the columns of `docs/design.md`, times in ns of the host's monotonic clock.

    Derived and never stored: queue wait = dequeued - arrived, service = ended - started, blocked = put - ended.
    """

    unit: str
    """item | frame | step, and what a training has beside steps."""
    unit_id: str
    parent_id: str | None
    """The item from which this one was cut (fan-out)."""
    stage: str
    plan_id: str
    host: str
    process: int
    thread: str
    rank: int
    attempt: int
    outcome: str
    """ok | failed | rejected."""
    arrived: int
    """The stage's queue took the item."""
    dequeued: int
    """A worker took it."""
    started: int
    ended: int
    put: int
    """The next queue took it, or it was settled."""
    cpu: int | None
    """CPU time of the service, ns; None where not measured."""
    run_delay: int | None
    """Time runnable but not running during the service, ns; None where not measured."""
    batch_id: int | None
    batch_size: int | None
    release_reason: str | None
    """Why the batch was released; see `policies.batching`."""
    queue_depth: int
    """Items in the stage's queue when this one arrived."""
    bytes_in: int
    bytes_out: int
    shape_key: str | None
    """Shape and type of the stage's output where it is an array."""
    weight: int = 1
    """How many items this row represents: above 1 if only some were recorded; 0: counted, never written."""
    cached: str | None = None
    """hit: the value came from a cache, and the stage did nothing; miss: the stage's own cache did not have it; None: no cache
    was asked."""


#: Version of the span table and of `run.json`. 1: 2026-11, first. 2: 2026-11, column `weight`; `stages`, `summary` in run.json.
#: 3: 2026-11, column `cached`.
SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of one message by a queue service."""

    id: str
    """The service's id of the message, stable over redeliveries."""
    body: bytes
    receipt: str
    """Handle of this delivery; stale after the visibility timeout."""
    receive_count: int
    """1 for the first delivery."""
    sent_at: float
    """Unix seconds."""
    kept: bytes = b""
    """An undelivered result, as passed to `postpone` or `dead_letter`; empty for none."""
    malformed: str = ""
    """Why it cannot be read as a message, such as `message.malformed: ...`: another program wrote it. `body` then holds the
    raw content, as bytes that every queue can store. Empty for a valid message."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """A message to offer again later, as if it was new."""

    message: Message
    delay_seconds: float
    kept: bytes
    kept_brief: bytes = b""
    """What to keep where `kept` is too large for the service: at most 256 bytes."""


@dataclass(frozen=True, slots=True)
class Burial:
    """A message to move to the dead-letter queue."""

    message: Message
    reason: str
    kept: bytes = b""
    """An undelivered result; left out if it is too large for the service."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the dead-letter queue."""

    id: str
    body: bytes
    reason: str
    receive_count: int
    died_at: float
    """Unix seconds."""
    kept: bytes = b""
    """A result that could not be delivered; empty for none."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A result that could not be delivered so far."""

    result: Any
    """`msgspec.UNSET` if it was too large to keep: the job is worked on again, and `since` stays."""
    since: float | None
    """When the delivery first failed, Unix seconds; None: not since the last redrive."""
    tries: int
    """How often delivery was put off since then."""

    @property
    def has_result(self) -> bool:
        """Whether the result itself was kept."""
        return self.result is not msgspec.UNSET


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """State of one queue; None for what the service does not report."""

    visible: int
    """Messages that could be received now."""
    in_flight: int
    """Messages received and not yet settled."""
    delayed: int
    """Messages held back until later."""
    dead: int
    """Messages in the dead-letter queue."""
    oldest_age_seconds: float | None
    """Age of the oldest message that could be received now; None if there is none or it is not known."""


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """State of one stage's queue and workers at one moment."""

    name: str
    workers: int
    busy: int
    """Workers in service."""
    depth: int
    """Items in the queue before the stage."""
    depth_bytes: int
    capacity: int
    """Bound of that queue, in items."""
    waiting_producers: int
    """Workers upstream that are blocked because the queue is full."""
    slow: int = 0
    """Slow calls in progress; they run beside the number in `workers`."""
    parked: int = 0
    """Queued items for servers or receivers that answer slowly or not at all."""


@dataclass(frozen=True, slots=True)
class BatchFormed:
    """One batch that the device took."""

    stage: str
    batch_id: int
    size: int
    reason: str
    """See `policies.batching`."""
    waited_seconds: float
    """Age of the oldest item in the stage's queue."""


@dataclass(slots=True)
class Counters:
    """Exact counts of a run."""

    received: int = 0
    delivered: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    retried: int = 0
    returned: int = 0
    lost: int = 0
    """Deliveries dropped because their lease ran out; another worker has the job."""
    notes: dict[str, int] = field(default_factory=dict)
    """Counters of stages: `decode.decoder.simplejpeg`, ..."""


class SourceWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a source that has all its jobs from the start does for each of them: who waits for it waits for no sender."""

    does: str
    """As the end of a sentence that begins with "it": `decodes video in one thread`."""
    is_decoding: bool = False
    cheaper: tuple[str, ...] = ()
    """What would take less of it, each as an advice."""
    threads: int = 1
    """That work while the thread of the source waits for them."""
    cpu_seconds: float | None = None
    """CPU seconds of a job in the thread that works ahead of the receivers, mean; None: receivers do it, or it is not known."""
    wait_seconds: float | None = None
    """Seconds of a job that this thread neither computed nor waited for a core, mean; None as above."""
    jobs_ahead: int = 1
    """Jobs that this thread keeps ready at most: a call of the source brings no more."""


class Receiving(msgspec.Struct, frozen=True, kw_only=True):
    """What the receivers did, exact, summed over them, from the moment the first job came to that in which the last one did.

    Calls that were under way when the first job came are left out, as they waited for the sender; so is what came to nothing
    after the last job. A run that had all its jobs from one call has no calls here.
    """

    num_receivers: int
    calls: int
    """Calls of the source."""
    empty_calls: int
    """Those that came back without a job."""
    full_calls: int
    """Those that brought as many jobs as were asked for."""
    jobs: int
    asked: int
    """Jobs asked for, summed over calls."""
    call_seconds: float
    """Within calls of the source."""
    empty_call_seconds: float
    """Within those that came back without a job."""
    blocked_seconds: float
    """Between calls: waiting until fewer were in flight, and for room in a queue."""
    inline_seconds: float
    """Between calls: running the stages that receivers run themselves, with the pauses before other tries."""
    mean_age_seconds: float | None = None
    """Mean time between a job's being sent and first received, over all jobs, by the queue's clock and this machine's; None
    where the source does not tell. Grows with a backlog."""
    last_age_seconds: float | None = None
    """The same over the last tenth of the jobs."""
    again_calls: int = 0
    """Those that brought only jobs that were received before: they may have waited until these were due. 0 in older runs."""
    again_call_seconds: float = 0.0
    """Within those."""
    most_jobs: int = 0
    """The most that a call brought. 0 in older runs."""
    most_calls: int = 0
    """Calls that brought so many."""
    gap_spread: float | None = None
    """Standard deviation over mean of the times between the ends of calls that brought jobs; None with several receivers, which
    end in turn, with too few calls, and in older runs."""
    gap_correlation: float | None = None
    """Correlation of each of these times with the one before; -0.5 where a clock sets the ends: one that is late shortens the
    next. About 0 where each call takes its own time."""


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the frames of one live stream."""

    name: str
    is_urgent: bool = False
    """It goes before the others."""
    seconds: float
    """From its first frame, or from the beginning where none came, until no more was read."""
    counts: dict[str, int]
    """Frames `decoded`, `given`, `skipped_*` (not wanted) and `dropped_*` (wanted, and too much or too late)."""
    ended: dict[str, int]
    """Those that were given, by how they ended: `delivered`, or the code of the reason why not."""
    connections: int
    """Those that brought frames: each but the first followed one that broke off."""
    age_p50_seconds: float | None
    """From a frame's last packet to its delivery; None: too few were delivered to say. From a sample of 2,000."""
    age_p99_seconds: float | None
    jitter_p50_seconds: float | None
    """By how much the time between two frames differed from the time that the stream's own clock says lies between them; None:
    it says none, or too few came."""
    jitter_p99_seconds: float | None
    stalls: int
    """Pauses of 1 s and more, and of five times what usually lies between two of its frames."""
    stalled_seconds: float
    """All of them together; of a stream that never came the whole run."""
    longest_stall_seconds: float


class Tending(msgspec.Struct, frozen=True, kw_only=True):
    """How punctual the thread was that sends acks and extends loans."""

    calls: int
    """Of the source's `tend`."""
    longest_gap_seconds: float
    """From the beginning of one to that of the next."""
    longest_call_seconds: float
    """Within one: the queue's own time."""
    visibility_seconds: float | None = None
    """How long a job is lent; None for sources that lend nothing."""
