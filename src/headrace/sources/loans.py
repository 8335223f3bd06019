"""What was received from a queue and is not settled yet: acks in batches, loans extended in time, nothing done twice.

How this works: `lend` enters a message, `Loan.settle` leaves its outcome in a list (any thread, no lock, no service call),
and `tend` (the supervisor's thread) does what is due: it sends acks, nacks and dead letters in batches and extends every
loan of which half is used, also those whose ack could not be sent yet. Calls to the service happen outside of the lock, so
receivers never wait for an ack.

What a queue service may do wrong is answered here:

- The same message comes a second time while we still work on it: the new receipt replaces the old one, and no second job
  is made. Services take the latest receipt only.
- A message comes again after it was delivered (an ack that was lost or not carried out): it is acked again, not repeated.
- A batch call fails for some receipts: those are tried again at a later `tend`.
- The service does not answer: calls pause with backoff; loans that run out meanwhile are lost, and their jobs are told.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.base.clock import Clock
from headrace.base.errors import QueueUnavailable
from headrace.base.in_flight import Place
from headrace.base.policies.visibility import VisibilityPolicy
from headrace.base.protocols import STALE, Queue
from headrace.base.records import Job, Message, Outcome, OutcomeKind, Postponed
from headrace.base.seat import Seat
from headrace.runs.run_folder import encodable

log = logging.getLogger(__name__)

#: Acks that are sent at once: what SQS takes per call.
ACK_ITEMS = 10
#: How long fewer than that wait for company. At 28 items/s and SQS, it turns 28 calls a second into 4.
ACK_SECONDS = 0.25
#: Tries per receipt before the message is left to its visibility timeout.
MAX_TRIES = 30
#: Ids of delivered messages that are remembered, so that they are not done again: some minutes of a fast worker.
NUM_REMEMBERED = 10_000
#: Pauses after the service did not answer.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 5.0
#: Part of the timeout by which extensions are brought forward to share a call with one that is due.
TOGETHER = 0.05

#: Ended loans that may wait to be noticed, beside as many as there are loans: cleaning up costs a pass over them.
_FEW = 100

#: Outcomes for which the service is told no more than a receipt.
_DONE_WITH = (OutcomeKind.DELIVERED, OutcomeKind.RETURNED)

Action = Literal["ack", "nack", "postpone", "dead_letter"]


@dataclass(slots=True)
class LoanCounts:
    """Exact counts; every outcome is counted once, when `tend` first sees it."""

    received: int = 0
    """Messages that became a job or were dead-lettered at once."""
    delivered: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    retried: int = 0
    postponed: int = 0
    """Of the retried: jobs whose result is kept, and which wait for their receiver; they count as not received."""
    returned: int = 0
    bad_messages: int = 0
    """Of the rejected: messages that are not jobs."""
    exhausted: int = 0
    """Of the dead-lettered: received too often before anybody could settle them; their workers probably died."""
    lost: int = 0
    """Loans that ran out: another worker may have the message."""
    stale: int = 0
    """Outcomes that came too late for the service."""
    adopted: int = 0
    """Second deliveries of a message that we were still working on."""
    redelivered: int = 0
    """Deliveries of a message that we had delivered before: acked again, not repeated."""
    extended: int = 0
    """Loans extended, each extension counted."""
    failed_entries: int = 0
    """Receipts for which a batch call failed; they are tried again."""
    failed_calls: int = 0
    """Calls that the service did not answer."""
    given_up: int = 0
    """Outcomes that could not be sent in MAX_TRIES tries."""


#: By what a message is known when it comes again. Not by its id alone, which in most services any sender can choose: two
#: messages that share one and say different things are two jobs. Hashes of bytes are random in each process.
Key = tuple[str, int]


def _key(message: Message) -> Key:
    return message.id, hash(message.body)


class Loan:
    """One message lent to us."""

    __slots__ = (
        "_book",
        "due_number",
        "is_suspect",
        "job",
        "key",
        "lent_at",
        "lost",
        "max_receives",
        "message",
        "num_tries",
        "outcome",
        "place",
        "receipt",
    )

    def __init__(self, message: Message, book: LoanBook, lent_at: float, max_receives: int) -> None:
        self.message = message
        self.key = _key(message)
        self.due_number = 0
        self.receipt = message.receipt
        self.job: Job | None = None
        self.outcome: Outcome | None = None
        self.lent_at = lent_at
        self.num_tries = 0
        self.lost = False
        self.max_receives = max_receives
        self.is_suspect = False
        self.place: Place | None = None
        self._book = book

    def latest(self) -> Message:
        """Return the message with the receipt that counts: it may have been delivered a second time since."""
        return replace(self.message, receipt=self.receipt)

    def postponed(self) -> Postponed:
        """Return what the queue is to offer again later."""
        assert self.outcome is not None
        kept = self.outcome.kept or self.message.kept
        return Postponed(self.latest(), self.outcome.delay_seconds, kept, self.outcome.kept_brief)

    def settle(self, job: Job | None, outcome: Outcome) -> None:
        """Leave the outcome for the next `tend`; never waits, any thread."""
        self.outcome = outcome
        self._book.note(self, job, outcome)
        if outcome.kind in _DONE_WITH:
            # Until the service has confirmed the end, which an outage can put off, the receipt is all that is needed.
            self.job, self.message = None, replace(self.message, body=b"", kept=b"")
        self._book.settled.append(self)  # deque.append is atomic


class LoanBook:
    """All loans of one queue. `lend` and `Loan.settle` from any thread; `tend` from one at a time.

    Args:
        queue: Where the messages come from.
        policy: When to extend.
        max_receives: Deliveries of one message before it is dead-lettered instead of retried.
        clock: The run's.
        ack_items: Outcomes that are sent at once.
        ack_seconds: How long fewer wait for company.
        seat: Where a supervisor sees what is lent, and tells what killed workers; None: there is none.
    """

    def __init__(
        self,
        queue: Queue,
        policy: VisibilityPolicy,
        *,
        max_receives: int,
        clock: Clock,
        ack_items: int = ACK_ITEMS,
        ack_seconds: float = ACK_SECONDS,
        seat: Seat | None = None,
    ) -> None:
        self._seat = seat
        self.settled: deque[Loan] = deque()
        self.counts = LoanCounts()
        self._queue = queue
        self._policy = policy
        self._max_receives = max_receives
        self._clock = clock
        self._ack_items = ack_items
        self._ack_seconds = ack_seconds
        self._lock = threading.Lock()
        self._tending = threading.Lock()
        self._loans: dict[Key, Loan] = {}
        # Of messages by their keys: the loans themselves would stay, with what was received, long after their end.
        self._due: list[tuple[float, int, Key]] = []
        self._num_due = 0
        self._delivered: OrderedDict[Key, None] = OrderedDict()
        self._pending: dict[tuple[Action, float], list[Loan]] = {}
        self._num_pending = 0
        self._flush_at = 0.0
        self._num_outages = 0
        self._resume_at = 0.0

    @property
    def num_in_flight(self) -> int:
        """Messages received whose end the queue has not confirmed."""
        return len(self._loans)

    def statistics(self) -> LoanCounts:
        """Return the counts as they are now."""
        return replace(self.counts)

    def lend(self, message: Message) -> Loan | None:
        """Enter a message just received; return None when no job is to be made of it."""
        now = self._now()
        with self._lock:
            known = self._loans.get(_key(message))
            if known is not None:
                known.receipt = message.receipt
                known.lent_at = now
                self._renew(known)
                self.counts.adopted += 1
                return None
            loan = Loan(message, self, now, self._max_receives)
            self._loans[loan.key] = loan
            blamed_for = self._enter(loan)
            self._schedule(loan, self._policy.extend_at(now))
            if loan.key in self._delivered:
                self.counts.redelivered += 1
                self._put_off("ack", 0.0, [loan])
                return None
            self.counts.received += 1
            exhausted = not blamed_for and message.receive_count > loan.max_receives
            self.counts.exhausted += exhausted
        if exhausted:
            blamed_for = (
                f"received {message.receive_count} times, allowed are {loan.max_receives}, and never settled: "
                "its workers died, or took longer than the visibility timeout"
            )
        if blamed_for:
            loan.settle(None, Outcome(OutcomeKind.DEAD_LETTERED, blamed_for))
            return None
        return loan

    def note(self, loan: Loan, job: Job | None, outcome: Outcome) -> None:
        """Let the supervisor know how a loan ended, as far as nobody else tells it."""
        if self._seat is None:
            return
        if job is None:
            self._seat.table.count(outcome.kind)
        if outcome.kind is OutcomeKind.DELIVERED and loan.place is not None:
            self._seat.table.delivered(loan.place)

    def _enter(self, loan: Loan) -> str:
        """Enter the loan where the supervisor sees it, and return why it must not run; empty: it may."""
        if self._seat is None:
            return ""
        record = self._seat.record(loan.message.id, loan.message.receive_count)
        if record is not None:
            loan.max_receives += record.excused
            loan.is_suspect = record.is_suspect
            if record.blamed:
                return record.reason
        loan.place = self._seat.table.enter(loan.message.id, loan.receipt, loan.lent_at)
        return ""

    def _renew(self, loan: Loan) -> None:
        if self._seat is not None and loan.place is not None:
            self._seat.table.renew(loan.place, loan.message.id, loan.receipt, loan.lent_at)

    def tend(self, *, everything: bool = False) -> None:
        """Send what is due and extend what is late; everything: also what could wait for company."""
        with self._tending:
            now = self._now()
            self._sort_settled(now)
            due = self._take_due(now)
            try:
                if now >= self._resume_at or everything:
                    # Extensions first: an ack may wait for a service that is slow to refuse it, a loan may not.
                    if due:
                        due = self._extend(due)
                        self._answered()
                    if self._is_flush_due(now, everything):
                        self._flush(now)
                        self._answered()
            except QueueUnavailable as error:
                self._pause(now, error)
            finally:
                # Whatever could not be extended now: again at the next tend, until it has run out.
                self._keep_or_lose(due, now)

    def _now(self) -> float:
        return self._clock.now_ns() / 1e9

    def _sort_settled(self, now: float) -> None:
        """Turn the outcomes left since the last time into what the queue is to be told."""
        had_none = self._num_pending == 0
        while self.settled:
            loan = self.settled.popleft()
            outcome = loan.outcome
            assert outcome is not None
            if loan.lost and outcome.kind is not OutcomeKind.DELIVERED:
                continue  # whoever has the message now decides
            with self._lock:
                self._put_off(*self._action(loan, outcome), [loan])
        if had_none and self._num_pending:
            self._flush_at = now + self._ack_seconds

    def _action(self, loan: Loan, outcome: Outcome) -> tuple[Action, float]:
        counts, count = self.counts, loan.message.receive_count
        if outcome.kind is OutcomeKind.DELIVERED:
            counts.delivered += 1
            self._remember(loan.key)
            return "ack", 0.0
        if outcome.kind is OutcomeKind.RETURNED:
            counts.returned += 1
            return "nack", 0.0
        if outcome.kind is OutcomeKind.RETRY and (outcome.kept or outcome.spared):
            counts.retried += 1
            counts.postponed += 1
            return "postpone", 0.0
        if outcome.kind is OutcomeKind.RETRY and count < loan.max_receives:
            counts.retried += 1
            # Quarters of a second, so that delays with jitter still share calls.
            return "nack", round(outcome.delay_seconds * 4) / 4
        if outcome.kind is OutcomeKind.RETRY:
            reason = f"{outcome.reason or 'failed'} (delivery {count} of {loan.max_receives})"
            loan.outcome = Outcome(OutcomeKind.DEAD_LETTERED, reason, kept=outcome.kept)
        if outcome.kind is OutcomeKind.REJECTED:
            counts.rejected += 1
            counts.bad_messages += loan.job is None
        else:
            counts.dead_lettered += 1
        return "dead_letter", 0.0

    def _put_off(self, action: Action, delay_seconds: float, loans: Sequence[Loan]) -> None:
        self._pending.setdefault((action, delay_seconds), []).extend(loans)
        self._num_pending += len(loans)

    def _flush(self, now: float) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
            self._num_pending = 0
        try:
            while pending:
                (action, delay), loans = next(iter(pending.items()))
                if action == "dead_letter":
                    while loans:
                        self._bury(loans[-1])
                        loans.pop()
                else:
                    receipts = [loan.receipt for loan in loans]
                    self._conclude(action, delay, loans, receipts, self._call(action, delay, loans))
                del pending[action, delay]
        finally:
            with self._lock:
                for (action, delay), loans in pending.items():
                    self._put_off(action, delay, loans)
            self._flush_at = now + self._ack_seconds

    def _call(self, action: Action, delay: float, loans: Sequence[Loan]) -> dict[str, str]:
        if action == "postpone":
            return self._queue.postpone([loan.postponed() for loan in loans])
        receipts = [loan.receipt for loan in loans]
        return self._queue.ack(receipts) if action == "ack" else self._queue.nack(receipts, delay_seconds=delay)

    def _bury(self, loan: Loan) -> None:
        outcome = loan.outcome
        assert outcome is not None
        kept = outcome.kept or loan.message.kept  # it may have ended before anybody tried to deliver
        # A reason may quote names and texts that are not Unicode, which no service stores.
        if not self._queue.dead_letter(loan.latest(), encodable(outcome.reason), kept=kept):
            self.counts.stale += 1
        self._end(loan)

    def _conclude(
        self, action: Action, delay: float, loans: Iterable[Loan], receipts: Iterable[str], failures: dict[str, str]
    ) -> None:
        again = []
        for loan, receipt in zip(loans, receipts, strict=True):
            reason = failures.get(receipt)
            if reason is not None and reason != STALE:
                self.counts.failed_entries += 1
                loan.num_tries += 1
                if loan.num_tries < MAX_TRIES:
                    again.append(loan)
                    continue
                self.counts.given_up += 1
                log.warning(
                    "%s: %s of message %s failed %d times (%s); it comes back after its visibility timeout",
                    *(self._queue.name, action, loan.message.id, MAX_TRIES, reason),
                )
            elif loan.receipt != receipt:
                # Delivered a second time during the call, and adopted: the new receipt is the one that counts. A message
                # that was given back and forgotten here would be lent to nobody until its visibility timeout.
                again.append(loan)
                continue
            elif reason == STALE:
                self.counts.stale += 1
            self._end(loan)
        with self._lock:
            self._put_off(action, delay, again)

    def _end(self, loan: Loan) -> None:
        if self._seat is not None and loan.place is not None:
            self._seat.table.leave(loan.place)
        with self._lock:
            if self._loans.get(loan.key) is loan:
                del self._loans[loan.key]

    def _remember(self, key: Key) -> None:
        self._delivered[key] = None
        if len(self._delivered) > NUM_REMEMBERED:
            self._delivered.popitem(last=False)

    def _schedule(self, loan: Loan, at: float) -> None:
        self._num_due += 1  # makes equal times comparable, and tells the loan's latest entry from earlier ones
        loan.due_number = self._num_due
        heapq.heappush(self._due, (at, self._num_due, loan.key))
        if len(self._due) > 2 * len(self._loans) + _FEW:
            # Those that have ended would stay for half of the visibility timeout.
            self._due = [entry for entry in self._due if self._scheduled(entry) is not None]
            heapq.heapify(self._due)

    def _scheduled(self, entry: tuple[float, int, Key]) -> Loan | None:
        """Return the loan of an entry; None if it has ended, or the message was lent anew since."""
        loan = self._loans.get(entry[2])
        return loan if loan is not None and loan.due_number == entry[1] else None

    def _take_due(self, now: float) -> list[Loan]:
        """Return the loans of which half is used, and those that nearly are when there is one."""
        due: list[Loan] = []
        with self._lock:
            until = now
            while self._due and self._due[0][0] <= until:
                loan = self._scheduled(heapq.heappop(self._due))
                if loan is None:
                    continue
                extend_at = self._policy.extend_at(loan.lent_at)
                if extend_at > until:
                    self._schedule(loan, extend_at)  # adopted meanwhile
                    continue
                due.append(loan)
                until = now + self._policy.timeout_seconds * TOGETHER
        return due

    def _extend(self, due: list[Loan]) -> list[Loan]:
        """Extend the loans and return those for which it failed."""
        asked_at = self._now()  # before the call: the service's loan starts later than we believe
        receipts = [loan.receipt for loan in due]
        failures = self._queue.extend(receipts, self._policy.timeout_seconds)
        failed = []
        for loan, receipt in zip(due, receipts, strict=True):
            reason = failures.get(receipt)
            if loan.receipt != receipt:
                failed.append(loan)  # adopted during the call
            elif reason is None:
                self.counts.extended += 1
                loan.lent_at = asked_at
                self._renew(loan)
                with self._lock:
                    self._schedule(loan, self._policy.extend_at(asked_at))
            elif reason == STALE:
                self._lose(loan)
            else:
                self.counts.failed_entries += 1
                failed.append(loan)
        return failed

    def _keep_or_lose(self, loans: list[Loan], now: float) -> None:
        for loan in loans:
            if self._policy.is_lost(now, loan.lent_at):
                self._lose(loan)
            else:
                runs_out_at = loan.lent_at + self._policy.timeout_seconds
                with self._lock:
                    self._schedule(loan, min(max(now, self._resume_at), runs_out_at))

    def _lose(self, loan: Loan) -> None:
        loan.lost = True
        job = loan.job  # it may be settled meanwhile
        if job is not None:
            job.lost = True
        self.counts.lost += 1
        self._end(loan)

    def _is_flush_due(self, now: float, everything: bool) -> bool:
        return self._num_pending > 0 and (everything or self._num_pending >= self._ack_items or now >= self._flush_at)

    def _answered(self) -> None:
        if self._num_outages:
            log.info("%s answers again", self._queue.name)
            self._num_outages = 0

    def _pause(self, now: float, error: QueueUnavailable) -> None:
        self.counts.failed_calls += 1
        pause = min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**self._num_outages)
        if self._num_outages == 0:
            log.warning("acks and extensions have to wait, %d messages in flight: %s", self.num_in_flight, error)
        self._num_outages += 1
        self._resume_at = now + pause
