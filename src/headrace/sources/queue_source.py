"""Joins a queue to the runtime: messages become jobs, outcomes become acks.

    receive -> LoanBook.lend -> decode -> Job ... Job.settle -> LoanBook.settled -> tend -> ack | nack | dead_letter

Messages that are not jobs, were received too often or kill workers reach the runtime with their verdict, but no stage.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BadMessage, QueueRefused, QueueUnavailable, SettingsError, SourceError
from headrace.base.in_flight import InFlight
from headrace.base.plan import SourcePlan
from headrace.base.policies.visibility import VisibilityPolicy, prefetch_limit
from headrace.base.protocols import AdoptsLoans, CostsCalls, HasIdentity, LimitsReceives, Queue, Source
from headrace.base.records import Job, Message, Outcome, OutcomeKind, QueueStatistics
from headrace.base.settings import check
from headrace.base.units import parse_duration
from headrace.base.worker_slot import TRADE_SECONDS, Exchange, WorkerSlot
from headrace.sources.addresses import hide_secrets, open_queue, parse_address
from headrace.sources.jobs import decode_message
from headrace.sources.loans import Loan, LoanBook, LoanCounts
from headrace.sources.parsing import Parser, find_parser
from headrace.sources.pending_calls import FIRST_PAUSE_SECONDS, SAID_EVERY_SECONDS, pause_seconds
from headrace.sources.quarantine import Quarantine, Settle

log = logging.getLogger(__name__)

#: Tries of `close` to send the last acks before the rest is left to the visibility timeout, and how long they may take.
CLOSING_TRIES, CLOSING_SECONDS = 3, 5.0
#: How long the service may refuse every receive before the run ends: new permissions take effect late.
REFUSED_SECONDS = 60.0
#: Empty receives in a row after which a queue whose calls cost money is polled less often.
EMPTY_RECEIVES = 10
#: How long a receive waits while nothing may be received.
HELD_OFF_SECONDS = 0.1
#: After what time other machines know of a message that was in work at a death, if they are told: each has looked.
TELLING_SECONDS = 1.5 * TRADE_SECONDS
#: How long one receive of a draining source waits at most.
DRAINING_WAIT_SECONDS = 0.25
#: Fields of `LoanCounts` that the run's own counters do not have.
_NOTED = (
    "postponed",
    "extended",
    "adopted",
    "redelivered",
    "stale",
    "exhausted",
    "bad_messages",
    "failed_calls",
    "failed_entries",
    "failed_letters",
    "put_aside",
    "given_up",
)


class QueueSource(Source):
    """Jobs from a queue. Several threads may call `receive`, one calls `tend`.

    Only `open` connects. A queue that was opened from an address is closed with the source; a queue that was passed in stays
    open for its owner.

    Args:
        queue: Address (see `headrace.sources.schemes`) or an open queue.
        visibility: How long received messages stay lent, such as `30s`; None for the value of the address or the service. A
            Plan overrides it.
        max_receives: Deliveries of one message before it is dead-lettered. A Plan overrides it.
        drain: End when the queue is empty, nothing is delayed and nobody works on a message. SQS counts approximately: there
            the queue is then very likely, but not certainly, empty.
        parse: Turns a body of another format into a job: a function, or a name such as `sns+s3` or
            `json:url=image.href,id=asset_id`; see `headrace.sources.parsing`. None: messages have headrace's own format.
        clock: The run's clock.
    """

    def __init__(
        self,
        queue: str | Queue,
        *,
        visibility: str | float | None = None,
        max_receives: int = 5,
        drain: bool = False,
        parse: str | Parser | None = None,
        clock: Clock | None = None,
    ) -> None:
        check(max_receives >= 1, "max_receives", max_receives, "a whole number >= 1")
        if isinstance(queue, str):
            parse_address(queue)  # a wrong address is told where it is written
        self._address = queue
        self._visibility_seconds = _seconds(visibility)
        self._max_receives = max_receives
        self._drain = drain
        self._parse = None if parse is None else find_parser(parse)
        self._clock: Clock = clock or SystemClock()
        self._open: _OpenSource | None = None
        self._slot: WorkerSlot | None = None

    def replace_address(self, address: str | None, *, drain: bool) -> QueueSource:
        """Return this source with another address, or as one that drains its queue; all else stays.

        Args:
            address: None or empty: the same queue. A visibility timeout in the address overrides this source's.
            drain: End when the queue is empty; False: unchanged.
        """
        has_its_own = address and parse_address(address).visibility_seconds is not None
        return QueueSource(
            address or self._address,
            visibility=None if has_its_own else self._visibility_seconds,
            max_receives=self._max_receives,
            drain=drain or self._drain,
            parse=self._parse,
            clock=self._clock,
        )

    def check_is_there(self) -> None:
        """Raise SettingsError if the queue's file does not exist: a drain would end at once and look successful."""
        if isinstance(self._address, str) and (path := parse_address(self._address).missing_file):
            raise SettingsError(
                f"there is no queue to drain at {self.shown_address}: {path} does not exist; look at the address"
            )

    def take(self, slot: WorkerSlot) -> None:
        """Record received messages where the supervisor sees them, and run suspects alone; call before `open`."""
        self._slot = slot

    def share_suspects(self, exchange: Exchange) -> None:
        """Tell other machines of messages that were in work when a worker died, and learn of theirs; call before `open`."""
        if self._slot is not None:
            self._slot.exchange = exchange

    @property
    def is_exhausted(self) -> bool:
        """Whether this source drains its queue and has found it empty."""
        return self._open is not None and self._open.is_exhausted

    @property
    def is_endless(self) -> bool:
        """Whether only a signal ends it; the received jobs are then finished."""
        return not self._drain

    @property
    def is_remote(self) -> bool:
        """Whether its jobs may come from other machines, which may not name files of this one."""
        if isinstance(self._address, str):
            return parse_address(self._address).scheme.is_remote
        return not getattr(self._address, "is_local", False)

    @property
    def visibility_seconds(self) -> float | None:
        """How long a received job is lent; None before the source is open."""
        return None if self._open is None else self._open.queue.visibility_seconds

    @property
    def shown_address(self) -> str:
        """Address for `headrace queue`, without secrets."""
        return hide_secrets(self._address) if isinstance(self._address, str) else self._address.name

    def open(self, settings: SourcePlan) -> None:
        """Connect; the Plan's `[source]` table overrides the arguments of the constructor.

        Raises:
            SettingsError: If an open queue was passed in that has another visibility timeout.
            SourceError: If the queue does not exist or the service does not answer.
        """
        asked = self._visibility_seconds if settings.visibility_seconds is None else settings.visibility_seconds
        if isinstance(self._address, str):
            queue = open_queue(self._address, visibility_seconds=asked)
        else:
            queue = self._address
            if asked is not None and asked != queue.visibility_seconds:
                raise SettingsError(
                    f"visibility_seconds = {asked} was asked for, but {queue.name} was opened with "
                    f"{queue.visibility_seconds}; pass the queue's address, or open it with the same"
                )
        self._open = _OpenSource(
            queue,
            max_receives=self._max_receives if settings.max_receives is None else settings.max_receives,
            max_in_flight=settings.max_in_flight,
            drain=self._drain,
            parse=self._parse,
            clock=self._clock,
            owned=isinstance(self._address, str),
            slot=self._slot,
        )

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs, [] if none came within wait_seconds, None once there are no more."""
        return self._require_open().receive(limit, wait_seconds)

    def tend(self) -> None:
        """Send acks, extend loans; tolerates a service that does not answer."""
        self._require_open().book.tend()

    def in_flight_limit(self, throughput: float | None, at_least: int) -> int | None:
        """Return how many jobs may be in flight so that each can be finished within its visibility timeout."""
        return self._require_open().in_flight_limit(throughput, at_least)

    def statistics(self) -> LoanCounts:
        """Return the counts so far."""
        return self._require_open().book.statistics()

    def least_remaining_seconds(self) -> float | None:
        """Return after what time the first job on loan may go to another worker unless its loan is extended; None: none is."""
        return self._require_open().book.least_remaining_seconds()

    def backlog(self) -> QueueStatistics:
        """Return the state of the queue now; thread-safe. Calls the service, so it may take time.

        Raises:
            QueueUnavailable: If the service does not answer.
        """
        return self._require_open().queue.statistics()

    def notes(self) -> dict[str, int]:
        """Return the counts of loans that are not 0, beside the outcomes of jobs: `source.extended`, ..."""
        counts = self.statistics()
        return {f"source.{name}": number for name in _NOTED if (number := getattr(counts, name))}

    @property
    def num_in_flight(self) -> int:
        """Messages that were received and whose end the queue has not confirmed."""
        return self._require_open().book.num_in_flight

    def close(self) -> None:
        """Send the last acks and disconnect. Repeating it does nothing; statistics stay readable."""
        if self._open is not None:
            self._open.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind when pickled."""
        return {**self.__dict__, "_open": None, "_slot": None}

    def _require_open(self) -> _OpenSource:
        if self._open is None:
            raise RuntimeError("open the source before using it")
        return self._open


class _OpenSource:
    """The part of a QueueSource that exists between open and close."""

    def __init__(
        self,
        queue: Queue,
        *,
        max_receives: int,
        max_in_flight: int | None,
        drain: bool,
        parse: Parser | None,
        clock: Clock,
        owned: bool,
        slot: WorkerSlot | None,
    ) -> None:
        self.queue = queue
        policy = VisibilityPolicy(timeout_seconds=queue.visibility_seconds)
        self.book = LoanBook(queue, policy, max_receives=max_receives, clock=clock, slot=slot)
        self._slot = slot
        self._quarantine = Quarantine() if slot else None
        if slot is not None:
            found = slot.inherit(queue.identity if isinstance(queue, HasIdentity) else queue.name)
            _settle_orphans(queue, [*slot.orphans, *found], clock, 0.0 if slot.exchange is None else TELLING_SECONDS)
        self._max_in_flight = max_in_flight
        self._drain = drain
        self._parse = parse
        self._clock = clock
        self._owned = owned
        self._closed = threading.Event()
        self._num_outages = 0
        self._refused_since: float | None = None
        self._held_off_until = 0.0
        self._num_empty = 0
        _compare_limits(queue, max_receives)
        self.is_exhausted = False

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        if self._closed.is_set():
            return None
        isolation = self._quarantine
        if isolation is not None and isolation.is_holding:
            taken = isolation.take(limit, wait_seconds)
            return [job.read() if isinstance(job, _Unread) else job for job in taken]
        if self._is_held_off():
            return []
        messages = self._receive(limit, wait_seconds)
        if messages is None:
            return None
        # Enter all of them before the first is read: reading one may kill this process, and the others must be known then.
        loans = [loan for message in messages if (loan := self.book.lend(message)) is not None]
        if isolation is None:
            return [self._enter(loan) for loan in loans]
        return isolation.pass_through([(self._enter(loan), loan.is_suspect and not loan.refused_for) for loan in loans])

    def _receive(self, limit: int, wait_seconds: float) -> list[Message] | None:
        """Return messages; None when the queue is drained and empty."""
        try:
            messages = self.queue.receive(limit, wait_seconds=0.0 if self._drain else self._wait_seconds(wait_seconds))
            self._num_empty = 0 if messages else self._num_empty + 1
            self.is_exhausted = self._drain and not messages
            if self.is_exhausted:
                if self._is_empty():
                    return None
                # Poll briefly: the queue mostly becomes empty by our own last acks, which do not end a long poll.
                messages = self.queue.receive(limit, wait_seconds=min(wait_seconds, DRAINING_WAIT_SECONDS))
        except QueueUnavailable as error:
            self._wait_out(error, wait_seconds)
            return []
        self._refused_since = None
        if self._num_outages:
            log.info("%s answers again", self.queue.name)
            self._num_outages = 0
        if self._slot is not None and messages:
            self._slot.hear()
        return messages

    def _enter(self, loan: Loan) -> Job:
        """Return the job of a message just received; the body of a suspect is read only once it runs alone."""
        message = loan.message
        settle = loan.settle if self._quarantine is None else self._quarantine.track_settle(loan.settle)
        if loan.refused_for:
            # The same for a message that may not run again: `parse` is code of the user, and may be what kills.
            return _make_refused_job(message, settle, Outcome(OutcomeKind.DEAD_LETTERED, loan.refused_for))
        if loan.is_suspect:
            loan.job = unread = _Unread(message.id, b"", attempt=message.receive_count, settle=settle)
            unread.read = functools.partial(self._read_alone, loan, settle)
            return unread
        if self._parse is None:
            return self._read(loan, settle)
        self._note_work(loan, 1)
        try:
            return self._read(loan, settle)
        finally:
            self._note_work(loan, -1)

    def _read_alone(self, loan: Loan, settle: Settle) -> Job:
        """Return the job of a suspect, which counts as worked on from now until it is settled: no other job is out."""
        self._note_work(loan, 1)

        def settled(job: Job | None, outcome: Outcome) -> None:
            settle(job, outcome)
            self._note_work(loan, -1)

        return self._read(loan, settled)

    def _note_work(self, loan: Loan, change: int) -> None:
        if self._slot is not None and loan.place is not None:
            self._slot.table.work(loan.place, change)

    def _read(self, loan: Loan, settle: Settle) -> Job:
        message = loan.message
        try:
            job = decode_message(message, parse=self._parse, clock=self._clock, settle=settle)
        except BadMessage as error:
            return _make_refused_job(message, settle, Outcome(OutcomeKind.REJECTED, error.reason))
        job.lost = loan.lost
        loan.job = job
        job.max_attempts = loan.max_receives
        job.sent_at = message.sent_at
        job.kept = message.kept
        job.keeps_results = job.may_wait = True
        if self._slot is not None and loan.place is not None:
            job.on_work = functools.partial(self._slot.table.work, loan.place)
        return job

    def in_flight_limit(self, throughput: float | None, at_least: int) -> int | None:
        limit = prefetch_limit(self.queue.visibility_seconds, throughput, at_least=at_least)
        if self._max_in_flight is None:
            return limit
        return self._max_in_flight if limit is None else min(limit, self._max_in_flight)

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        if self._quarantine is not None:
            self._quarantine.give_back()
        # In a thread that may be abandoned: a service that does not answer must not keep the process beyond its grace period.
        last = threading.Thread(target=self._settle_last, name="last-acks", daemon=True)
        last.start()
        last.join(CLOSING_SECONDS)
        if self.book.num_in_flight:
            log.warning(
                "%s: %d messages were not settled; they come back after %g s",
                *(self.queue.name, self.book.num_in_flight, self.queue.visibility_seconds),
            )
        if self._owned:
            self.queue.close()
        if self._slot is not None:
            self._slot.leave(is_drained=self.is_exhausted and not self.book.num_in_flight)

    def _wait_seconds(self, wait_seconds: float) -> float:
        """Return how long to wait for a message; it grows while none come, if calls cost money."""
        if wait_seconds <= 0 or self._num_empty < EMPTY_RECEIVES or not isinstance(self.queue, CostsCalls):
            return wait_seconds
        doublings = min(self._num_empty - EMPTY_RECEIVES + 1, 10)
        return max(wait_seconds, min(self.queue.idle_wait_seconds, wait_seconds * 2.0**doublings))

    def _settle_last(self) -> None:
        try:
            for _ in range(CLOSING_TRIES):
                self.book.tend(everything=True)
                if not self.book.num_in_flight:
                    break
        except SourceError as error:
            log.warning("%s", error)

    def _is_held_off(self) -> bool:
        """Wait a little and return True while received messages cannot be settled."""
        why = self.book.hold_off()
        if not why:
            return False
        now = self._clock.now_ns() / 1e9
        if now >= self._held_off_until:
            log.warning("%s: nothing more is received: %s", self.queue.name, why)
            self._held_off_until = now + SAID_EVERY_SECONDS
        self._closed.wait(HELD_OFF_SECONDS)
        return True

    def _is_empty(self) -> bool:
        """Return whether nothing is in the queue or in flight, except dead letters that cannot be written."""
        num_hopeless = self.book.num_hopeless
        if self.book.num_in_flight > num_hopeless:
            return False
        state = self.queue.statistics()
        if state.visible or state.in_flight + state.delayed > num_hopeless:
            return False
        if num_hopeless:
            log.warning(
                "%s is empty but for %d messages whose dead letters cannot be written", self.queue.name, num_hopeless
            )
        return True

    def _wait_out(self, error: QueueUnavailable, wait_seconds: float) -> None:
        now = self._clock.now_ns() / 1e9
        if not isinstance(error, QueueRefused):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since >= REFUSED_SECONDS:
            raise SourceError(f"{error}; it refused every receive for {REFUSED_SECONDS:g} s") from error
        if self._num_outages == 0:
            log.warning("nothing can be received: %s", error)
        # At least the first pause, so that a receiver that does not wait does not spin.
        self._num_outages += 1
        pause = min(pause_seconds(self._num_outages), max(FIRST_PAUSE_SECONDS, wait_seconds))
        # Jitter, so that workers do not all return at once; it is small, because the pause is part of the wait.
        self._closed.wait(random.uniform(0.7, 1.0) * pause)


class _Unread(Job):
    """A suspect whose message is decoded only when no other job is out, because decoding may be what kills."""

    __slots__ = ("read",)
    read: Callable[[], Job]


def _make_refused_job(message: Message, settle: Callable[[Job, Outcome], None], verdict: Outcome) -> Job:
    """Return a job that carries only its verdict, so that it is counted, recorded and observed like any other."""
    refused = Job(message.id, b"", attempt=message.receive_count, settle=settle)
    refused.verdict = verdict
    refused.keeps_results = True  # as every job of a queue: what is refused here is lost to it
    return refused


def _compare_limits(queue: Queue, max_receives: int) -> None:
    """Warn if the service dead-letters messages earlier than headrace, which would store the reason."""
    most = queue.most_receives if isinstance(queue, LimitsReceives) else None
    if most is not None and most <= max_receives:
        log.warning(
            "%s: its RedrivePolicy moves messages to the dead-letter queue after %d deliveries, without a reason and whatever "
            "they are, and max_receives is %d: raise its maxReceiveCount above %d, or lower max_receives below %d",
            *(queue.name, most, max_receives, max_receives, most),
        )


def _settle_orphans(queue: Queue, orphans: Sequence[InFlight], clock: Clock, telling_seconds: float) -> None:
    """Ack the messages that dead processes had delivered, and offer the rest again now, not after its timeout.

    Args:
        queue: They are of it.
        orphans: Messages that dead processes had in flight.
        clock: The run's.
        telling_seconds: Until all machines know of those that were in work; they are offered again after that.
    """
    since = clock.now_ns() / 1e9 - queue.visibility_seconds
    # A loan that may have run out may belong to another worker by now.
    ours = [orphan for orphan in orphans if orphan.receipt and orphan.lent_at > since]
    if isinstance(queue, AdoptsLoans):
        queue.adopt({orphan.receipt: orphan.lent_at for orphan in ours})
    try:
        queue.ack([orphan.receipt for orphan in ours if orphan.delivered])
        queue.nack([orphan.receipt for orphan in ours if not orphan.delivered and not orphan.in_work])
        in_work = [orphan.receipt for orphan in ours if not orphan.delivered and orphan.in_work]
        queue.nack(in_work, delay_seconds=telling_seconds)
    except QueueUnavailable as error:
        log.info("what was in flight comes back after its visibility timeout: %s", error)


def _seconds(visibility: str | float | None) -> float | None:
    if visibility is None:
        return None
    try:
        seconds = parse_duration(visibility)
    except ValueError as error:
        raise SettingsError(f"visibility: {error}") from None
    check(seconds > 0, "visibility", visibility, "more than 0")
    return seconds
