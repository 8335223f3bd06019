"""Messages that were received and are not settled: acks in batches, loans extended in time, no work done twice.

How this works: `lend` enters a message, `Loan.settle` leaves its outcome in a list (any thread, no lock, no service call),
and `tend` (the heartbeat thread) does what is due: it extends every loan of which half is used, also those whose ack could
not be sent yet, and sends acks, nacks, postponements and dead letters in batches, each kind in a lane of its own. It works for
a quarter of a second at most, and looks after the loans between two calls. Calls to the service happen outside of the lock,
so receivers never wait for an ack.

Failures of a queue service are handled here:

- The same message comes a second time while we still work on it: the new receipt replaces the old one, and no second job
  is made. Services take the latest receipt only.
- A message comes again after it was delivered (an ack that was lost or not carried out): it is acked again, not repeated.
- A batch call fails for some receipts: these are tried again without end, after growing pauses.
- One kind of call fails, for instance without a permission: its lane pauses, the others go on. Dead letters that cannot be
  written stay lent; when there are many, the oldest go back to their queue for a quarter of an hour.
- Outcomes pile up: `hold_off` returns why nothing more may be received.
- The service does not answer: all calls pause with backoff; loans that run out meanwhile are lost, and their jobs marked so.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.base.clock import Clock
from headrace.base.errors import QueueRefused, QueueUnavailable, SourceError
from headrace.base.formatting import encodable
from headrace.base.in_flight import InFlightPlace
from headrace.base.policies.blame import Record
from headrace.base.policies.visibility import VisibilityPolicy
from headrace.base.protocols import FINAL, STALE, Queue
from headrace.base.records import DELIVERED, Burial, Job, Message, Outcome, OutcomeKind, Postponed
from headrace.base.worker_slot import WorkerSlot
from headrace.sources.pending_calls import Action, Lane, Pauses
from headrace.sources.untrusted import describe_error

log = logging.getLogger(__name__)

#: Acks per call; the limit of SQS.
ACK_ITEMS = 10
#: How long fewer acks wait for more. At 28 items/s on SQS this makes 4 calls a second out of 28.
ACK_SECONDS = 0.25
#: Outcomes per call of the queue (which may split them), and loans per extension: other work runs between two calls.
MOST_PER_CALL = 100
MOST_EXTENDED = 500
#: Time after which one `tend` begins no further call.
TEND_SECONDS = 0.25
#: Limits above which nothing is received: outcomes that wait to be sent, and outcomes stuck behind failures.
MOST_OWED, MOST_STUCK = 5_000, 200
#: Dead letters that may be stuck before the oldest go back to their queue, and how long these stay there.
MOST_STUCK_LETTERS, ASIDE_SECONDS = 100, 900.0
#: Tries after which a dead letter counts as impossible to write; about a minute.
HOPELESS_TRIES = 10
#: Remembered ids of delivered messages, so that none is done again: some minutes of a fast worker.
NUM_REMEMBERED = 10_000
#: A message that was received too often is tried once more, alone, if no deaths of it are known: the record may be lost, and
#: the message innocent. After this number of extra deliveries it is given up in any case.
MOST_UNKNOWN = 20
#: Share of the timeout by which an extension may be early to share a call, and after which a failed one is repeated.
TOGETHER = 0.05

#: Stale entries of the heap that are tolerated, beyond as many as there are loans, before it is compacted.
_FEW = 100

#: Outcomes for which the service needs only a receipt.
_DONE_WITH = (OutcomeKind.DELIVERED, OutcomeKind.RETURNED)

_WAITING = {
    "ack": "delivered jobs cannot be acked",
    "nack": "jobs cannot be given back",
    "postpone": "results cannot be kept with their jobs",
    "dead_letter": "dead letters cannot be written; their messages stay in the queue",
}


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
    """Part of the retried: jobs with a kept result that wait for their receiver; they count as not received."""
    returned: int = 0
    bad_messages: int = 0
    """Part of the rejected: messages that are not jobs."""
    exhausted: int = 0
    """Part of the dead-lettered: received too often without being settled; their workers probably died."""
    lost: int = 0
    """Loans that ran out: another worker may have the message."""
    stale: int = 0
    """Outcomes that came too late for the service."""
    adopted: int = 0
    """Second deliveries of messages in work here."""
    redelivered: int = 0
    """Deliveries of messages whose result was delivered here before: acked again, not repeated."""
    extended: int = 0
    """Loans extended, each extension counted."""
    failed_entries: int = 0
    """Receipts for which a batch call failed; they are tried again."""
    failed_calls: int = 0
    """Calls that the service did not answer."""
    given_up: int = 0
    """Outcomes that the service refuses permanently: the message comes back after its visibility timeout."""
    failed_letters: int = 0
    """Dead letters that could not be written, each try counted."""
    put_aside: int = 0
    """Messages whose dead letter could not be written and that went back to their queue for a while."""


#: Identifies a message that comes again: its id and a hash of its body. Most services let the sender choose the id, and two
#: messages with one id and different bodies are two jobs. Hashes of bytes are random in each process.
Key = tuple[str, int]


def _key(message: Message) -> Key:
    return message.id, hash(message.body)


class Loan:
    """One message that this process has on loan."""

    __slots__ = (
        "_book",
        "delay_seconds",
        "due_number",
        "is_repeated",
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
        "refused_for",
    )

    def __init__(self, message: Message, book: LoanBook, lent_at: float, max_receives: int) -> None:
        self.message = message
        self.key = _key(message)
        self.delay_seconds = 0.0
        self.is_repeated = False
        self.due_number = 0
        self.receipt = message.receipt
        self.job: Job | None = None
        self.outcome: Outcome | None = None
        self.lent_at = lent_at
        self.num_tries = 0
        self.lost = False
        self.max_receives = max_receives
        self.is_suspect = False
        self.refused_for = ""
        self.place: InFlightPlace | None = None
        self._book = book

    def latest(self) -> Message:
        """Return the message with its latest receipt: it may have been delivered a second time."""
        return replace(self.message, receipt=self.receipt)

    def make_postponed(self) -> Postponed:
        """Return the message to offer again later."""
        assert self.outcome is not None
        kept = self.outcome.kept or self.message.kept
        return Postponed(self.latest(), self.outcome.delay_seconds, kept, self.outcome.kept_brief)

    def burial(self) -> Burial:
        """Return the message to move to the dead-letter queue."""
        assert self.outcome is not None
        # The job may have ended before a try to deliver. A reason may quote text that is not Unicode, which no service stores.
        kept = self.outcome.kept or self.message.kept
        return Burial(self.latest(), encodable(self.outcome.reason), kept)

    def settle(self, job: Job | None, outcome: Outcome) -> None:
        """Leave the outcome for the next `tend`; thread-safe, never waits."""
        self.outcome = outcome
        self._book.note(self, job, outcome)
        if outcome.kind in _DONE_WITH and not outcome.excused:
            # Until the service has confirmed the end, which an outage can put off, the receipt is all that is needed.
            self.job, self.message = None, replace(self.message, body=b"", kept=b"")
        self._book.settled.append(self)  # deque.append is atomic


class LoanBook:
    """All loans of one queue. `lend` and `Loan.settle` are thread-safe; one thread at a time calls `tend`.

    Args:
        queue: Where the messages come from.
        policy: When to extend.
        max_receives: Deliveries of one message before it is dead-lettered instead of retried.
        clock: The run's clock.
        ack_items: Outcomes per call.
        ack_seconds: How long fewer outcomes wait for more.
        slot: Shared with a supervisor, which sees the loans and knows which messages killed workers; None: no supervisor.
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
        slot: WorkerSlot | None = None,
    ) -> None:
        self._slot = slot
        self.settled: deque[Loan] = deque()
        self.counts = LoanCounts()
        self._queue = queue
        self._policy = policy
        self._max_receives = max_receives
        self._clock = clock
        self._lock = threading.Lock()
        self._tending = threading.Lock()
        self._loans: dict[Key, Loan] = {}
        # Of messages by their keys: the loans themselves would stay, with what was received, long after their end.
        self._due: list[tuple[float, int, Key]] = []
        self._num_due = 0
        self._delivered: OrderedDict[Key, None] = OrderedDict()
        actions: tuple[Action, ...] = ("ack", "nack", "postpone", "dead_letter")
        self._lanes = {action: Lane[Loan](action, ack_items, ack_seconds) for action in actions}
        self._num_served = 0
        self._extending = Pauses()
        self._silence = Pauses()
        self._aside: dict[Key, float] = {}
        self._last_tries: OrderedDict[Key, None] = OrderedDict()

    @property
    def num_in_flight(self) -> int:
        """Messages that were received and whose end the queue has not confirmed."""
        return len(self._loans)

    def statistics(self) -> LoanCounts:
        """Return the counts as they are now."""
        return replace(self.counts)

    def least_remaining_seconds(self) -> float | None:
        """Return after what time the first loan runs out unless it is extended; None while nothing is on loan."""
        lent_at = min((loan.lent_at for loan in list(self._loans.values())), default=None)
        return None if lent_at is None else max(0.0, lent_at + self._policy.timeout_seconds - self._now())

    def lend(self, message: Message) -> Loan | None:
        """Enter a message just received; return None if it needs no job."""
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
                loan.is_repeated = True
                loan.settle(None, DELIVERED)
                return None
            self.counts.received += 1
            exhausted = not blamed_for and message.receive_count > loan.max_receives
            self.counts.exhausted += exhausted
        loan.refused_for = blamed_for
        if exhausted:
            loan.refused_for = (
                f"received {message.receive_count} times, allowed are {loan.max_receives}, and never settled: "
                "its workers died, or took longer than the visibility timeout"
            )
        return loan

    def note(self, loan: Loan, job: Job | None, outcome: Outcome) -> None:
        """Record for the supervisor how a loan ended, if nobody else does."""
        if self._slot is None or loan.is_repeated:
            return
        if job is None:
            self._slot.table.count(outcome.kind)
        if outcome.kind is OutcomeKind.DELIVERED and loan.place is not None:
            self._slot.table.note_delivery(loan.place)

    def _enter(self, loan: Loan) -> str:
        """Enter the loan where the supervisor sees it; return why it must not run, or an empty text."""
        if self._slot is None:
            return ""
        record = self._slot.record(loan.message.id, loan.message.receive_count)
        if record is not None:
            loan.max_receives += record.excused
            loan.is_suspect = record.is_suspect
            if record.blamed:
                return record.reason
        if self._is_to_be_tried(loan, record):
            _remember(self._last_tries, loan.key)
            loan.max_receives = loan.message.receive_count
            loan.is_suspect = True
        loan.place = self._slot.table.enter(loan.message.id, loan.receipt, loan.lent_at)
        return ""

    def _is_to_be_tried(self, loan: Loan, record: Record | None) -> bool:
        """Return whether a message that was received too often runs once more, alone, because no death is known of it."""
        num_surplus = loan.message.receive_count - loan.max_receives
        was_tried = loan.key in self._last_tries or (record is not None and record.was_alone)
        return 0 < num_surplus <= MOST_UNKNOWN and not was_tried

    def _renew(self, loan: Loan) -> None:
        if self._slot is not None and loan.place is not None:
            self._slot.table.renew(loan.place, loan.message.id, loan.receipt, loan.lent_at)

    def hold_off(self) -> str:
        """Return why nothing may be received now; an empty text if it may."""
        lanes = self._lanes.values()
        if sum(lane.num_stuck for lane in lanes) >= MOST_STUCK:
            worst = max(lanes, key=lambda lane: lane.num_stuck)
            return f"{_WAITING[worst.action]} ({worst.num_stuck} wait)"
        num_owed = len(self.settled) + sum(len(lane) for lane in lanes)
        return f"{num_owed} outcomes wait to be sent to the queue" if num_owed >= MOST_OWED else ""

    @property
    def num_hopeless(self) -> int:
        """Messages whose dead letters cannot be written: stuck here, or back in the queue."""
        now = self._now()
        num_aside = sum(until > now for until in list(self._aside.values()))
        return self._lanes["dead_letter"].num_hopeless(HOPELESS_TRIES) + num_aside

    def tend(self, *, everything: bool = False) -> None:
        """Extend loans and send outcomes that are due; `everything`: try all that wait once, also after failures."""
        with self._tending:
            give_up_at = self._now() + TEND_SECONDS
            self._sort_settled()
            if everything:
                self._silence.resume_at = 0.0
                for lane in self._lanes.values():
                    lane.hurry()
            failed: set[Action] = set()
            while True:
                now = self._now()
                # Extensions first: an ack can wait for a slow service, a loan cannot.
                self._extend_due(now)
                next_lane = None if now < self._silence.resume_at else self._next_lane(now, failed)
                if next_lane is None or (now >= give_up_at and not everything):
                    return
                if not self._send_from(next_lane):
                    failed.add(next_lane.action)

    def _now(self) -> float:
        return self._clock.now_ns() / 1e9

    def _sort_settled(self) -> None:
        """Turn the new outcomes into pending calls of the queue."""
        now = self._now()
        for _ in range(len(self.settled)):
            loan = self.settled.popleft()
            outcome = loan.outcome
            assert outcome is not None
            if loan.lost and outcome.kind is not OutcomeKind.DELIVERED:
                continue  # its present holder decides
            self._lanes[self._action(loan, outcome)].add(loan, now)

    def _action(self, loan: Loan, outcome: Outcome) -> Action:
        counts, count = self.counts, loan.message.receive_count
        if loan.is_repeated:
            return "ack"
        if outcome.kind is OutcomeKind.DELIVERED:
            counts.delivered += 1
            _remember(self._delivered, loan.key)
            return "ack"
        if outcome.is_put_aside:
            counts.returned += 1
            counts.postponed += 1
            return "postpone"
        if outcome.kind is OutcomeKind.RETURNED:
            counts.returned += 1
            if outcome.excused and count + 1 >= loan.max_receives:
                return "postpone"  # the service counts the delivery all the same, and would bury the message soon
            loan.delay_seconds = _round_delay(outcome.delay_seconds)
            return "nack"
        if outcome.kind is OutcomeKind.RETRY and (outcome.kept or outcome.spared):
            counts.retried += 1
            counts.postponed += 1
            return "postpone"
        if outcome.kind is OutcomeKind.RETRY and count < loan.max_receives:
            counts.retried += 1
            loan.delay_seconds = _round_delay(outcome.delay_seconds)
            return "nack"
        if outcome.kind is OutcomeKind.RETRY:
            reason = f"{outcome.reason or 'failed'} (delivery {count} of {loan.max_receives})"
            loan.outcome = Outcome(OutcomeKind.DEAD_LETTERED, reason, kept=outcome.kept)
        if outcome.kind is OutcomeKind.REJECTED:
            counts.rejected += 1
            counts.bad_messages += loan.job is None
        else:
            counts.dead_lettered += 1
        return "dead_letter"

    def _next_lane(self, now: float, failed: set[Action]) -> Lane[Loan] | None:
        """Return the next lane with something due."""
        due = [lane for action, lane in self._lanes.items() if action not in failed and lane.is_due(now)]
        return min(due, key=lambda lane: lane.served, default=None)

    def _send_from(self, lane: Lane[Loan]) -> bool:
        """Send the outcomes of one call, and return whether the service carried it out."""
        self._num_served += 1
        lane.served = self._num_served
        # While dead letters fail, send them one by one: the fault may be in a single one.
        is_alone = lane.action == "dead_letter" and lane.pauses.num_failures > 0
        loans = lane.take(1 if is_alone else MOST_PER_CALL)
        loans = [loan for loan in loans if not loan.lost or lane.action == "ack"]
        if not loans:
            return True
        receipts = [loan.receipt for loan in loans]
        try:
            failures = self._call(lane.action, loans, receipts)
        except QueueUnavailable as error:
            self._note_failure(lane.pauses, error, f"{_WAITING[lane.action]}, {len(lane) + len(loans)} wait")
            if is_alone:
                lane.put_off(loans[0], self._now())
            else:
                lane.put_back(loans)
            self._put_letters_aside()
            return False
        self._note_answer(lane.pauses)
        self._conclude(lane, loans, receipts, failures)
        return True

    def _call(self, action: Action, loans: Sequence[Loan], receipts: Sequence[str]) -> dict[str, str]:
        if action == "ack":
            return self._queue.ack(receipts)
        if action == "nack":
            return self._queue.nack(receipts, delay_seconds=loans[0].delay_seconds)
        if action == "postpone":
            return self._queue.postpone([loan.make_postponed() for loan in loans])
        try:
            return self._queue.dead_letter([loan.burial() for loan in loans])
        except SourceError:
            raise
        except Exception as error:  # letters are made of what strangers sent: a defect there must not end the worker
            raise QueueRefused(f"{self._queue.name}: {describe_error(error)}") from error

    def _conclude(self, lane: Lane[Loan], loans: list[Loan], receipts: list[str], failures: dict[str, str]) -> None:
        now = self._now()
        said = ""
        for loan, receipt in zip(loans, receipts, strict=True):
            reason = failures.get(receipt)
            if reason is not None and reason != STALE:
                self.counts.failed_entries += 1
                said = said or f"message {loan.message.id}: {reason}"
                if lane.action == "dead_letter" or not reason.startswith(FINAL):
                    self.counts.failed_letters += lane.action == "dead_letter"
                    lane.put_off(loan, now)
                    continue
                self.counts.given_up += 1
                log.warning(
                    "%s: %s of message %s is refused (%s); it comes back after its visibility timeout",
                    *(self._queue.name, lane.action, loan.message.id, reason),
                )
            elif loan.receipt != receipt:
                # Delivered a second time during the call: the new receipt counts. If it were dropped here, nobody would hold
                # the message until its visibility timeout.
                lane.add(loan, now)
                continue
            elif reason == STALE:
                self.counts.stale += 1
            self._end(loan)
        if said and lane.num_stuck and lane.pauses.is_to_be_said(now):
            log.warning("%s: %s, %d wait: %s", self._queue.name, _WAITING[lane.action], lane.num_stuck, said)
        self._put_letters_aside()

    def _put_letters_aside(self) -> None:
        """Give back messages whose dead letters cannot be written, so that their number stays bounded."""
        now = self._now()
        for loan in self._lanes["dead_letter"].take_stuck(MOST_STUCK_LETTERS):
            self.counts.put_aside += 1
            self._aside[loan.key] = now + ASIDE_SECONDS
            loan.delay_seconds = ASIDE_SECONDS
            self._lanes["nack"].add(loan, now)
        if len(self._aside) > NUM_REMEMBERED:
            self._aside = {key: until for key, until in self._aside.items() if until > now}

    def _end(self, loan: Loan) -> None:
        if self._slot is not None and loan.place is not None:
            self._slot.table.leave(loan.place)
        with self._lock:
            if self._loans.get(loan.key) is loan:
                del self._loans[loan.key]

    def _schedule(self, loan: Loan, at: float) -> None:
        self._num_due += 1  # makes equal times comparable, and tells the loan's latest entry from earlier ones
        loan.due_number = self._num_due
        heapq.heappush(self._due, (at, self._num_due, loan.key))
        if len(self._due) > 2 * len(self._loans) + _FEW:
            # Ended loans would otherwise stay for half of the visibility timeout.
            self._due = [entry for entry in self._due if self._find_scheduled(entry) is not None]
            heapq.heapify(self._due)

    def _find_scheduled(self, entry: tuple[float, int, Key]) -> Loan | None:
        """Return the loan of an entry; None if it has ended, or the message was lent again since."""
        loan = self._loans.get(entry[2])
        return loan if loan is not None and loan.due_number == entry[1] else None

    def _take_due(self, now: float) -> list[Loan]:
        """Return the loans of which half is used, and with them those that soon will be."""
        due: list[Loan] = []
        with self._lock:
            until = now
            while self._due and self._due[0][0] <= until and len(due) < MOST_EXTENDED:
                loan = self._find_scheduled(heapq.heappop(self._due))
                if loan is None:
                    continue
                extend_at = self._policy.extend_at(loan.lent_at)
                if extend_at > until:
                    self._schedule(loan, extend_at)  # adopted meanwhile
                    continue
                due.append(loan)
                until = now + self._policy.timeout_seconds * TOGETHER
        return due

    def _extend_due(self, now: float) -> None:
        due = self._take_due(now)
        try:
            if due and now >= max(self._extending.resume_at, self._silence.resume_at):
                due = self._extend(due)
                self._note_answer(self._extending)
        except QueueUnavailable as error:
            self._note_failure(self._extending, error, f"loans cannot be extended, {self.num_in_flight} in flight")
        finally:
            # Try again soon what could not be extended, until it has run out.
            self._keep_or_lose(due, now)

    def _extend(self, due: list[Loan]) -> list[Loan]:
        """Extend the loans and return the failed ones."""
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
        timeout = self._policy.timeout_seconds
        again_at = max(now + TOGETHER * timeout, self._extending.resume_at, self._silence.resume_at)
        for loan in loans:
            if self._policy.is_lost(now, loan.lent_at):
                self._lose(loan)
            else:
                with self._lock:
                    self._schedule(loan, min(again_at, loan.lent_at + timeout))

    def _lose(self, loan: Loan) -> None:
        loan.lost = True
        job = loan.job  # it may be settled meanwhile
        if job is not None:
            job.lost = True
        self.counts.lost += 1
        self._end(loan)

    def _note_answer(self, pauses: Pauses) -> None:
        self._silence.note_success()
        if pauses.note_success():
            log.info("%s answers again", self._queue.name)

    def _note_failure(self, pauses: Pauses, error: QueueUnavailable, what: str) -> None:
        now = self._now()
        self.counts.failed_calls += 1
        pauses.note_failure(now)
        if pauses.is_to_be_said(now):
            log.warning("%s: %s", what, error)
        if not isinstance(error, QueueRefused):
            # One call may fail by itself. After two in a row, of any kind, the service is down: no other call need wait for
            # it.
            self._silence.note_failure(now)
            if self._silence.num_failures == 1:
                self._silence.resume_at = 0.0


def _remember(keys: OrderedDict[Key, None], key: Key) -> None:
    keys[key] = None
    if len(keys) > NUM_REMEMBERED:
        keys.popitem(last=False)


def _round_delay(seconds: float) -> float:
    """Round to quarters of a second, so that delays with jitter still share calls."""
    return round(seconds * 4) / 4
