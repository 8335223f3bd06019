"""A queue in memory for tests: exact by default, and able to do everything unpleasant that Amazon SQS may do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import QueueUnavailable
from headrace.base.protocols import STALE
from headrace.base.records import Burial, DeadLetter, Message, Postponed, QueueStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Lies:
    """What a queue service may do and still keep its promises; ratios are probabilities from 0 to 1."""

    duplicate_ratio: float = 0.0
    """Deliveries after which the message is offered to somebody else at once, although it is lent."""
    resurrect_ratio: float = 0.0
    """Acks after which the message is delivered once more all the same."""
    stale_acks_succeed: bool = False
    """An ack with an old receipt is answered with success and does nothing, as SQS does."""
    batch_failure_ratio: float = 0.0
    """Receipts of a batch call that fail with `InternalError`; another try may succeed."""
    empty_receive_ratio: float = 0.0
    """Receives that return nothing although there are messages."""
    shuffle: bool = False
    """Messages come in any order."""


TRUTHFUL = Lies()


@dataclass(slots=True)
class _Row:
    id: str
    body: bytes
    sent_at: float
    visible_at_ns: int
    receive_count: int = 0
    receipt: str = ""
    """Of the delivery that holds the message; empty when nobody does."""
    kept: bytes = b""
    malformed: str = ""


class MemoryQueue:
    """A queue in this process's memory. Thread-safe.

    Args:
        visibility_seconds: How long a received message stays lent.
        clock: A `FakeClock` for tests without waiting; `receive` then never waits. None: the host's clock.
        lies: What it does wrong, decided by the seed.
        seed: Of the lies.

    Attributes:
        available: Set it to False, and every call raises QueueUnavailable.
        calls: Number of calls by method, for tests of batching.
    """

    is_local = True

    def __init__(
        self, *, visibility_seconds: float = 30.0, clock: Clock | None = None, lies: Lies = TRUTHFUL, seed: int = 0
    ) -> None:
        self.available = True
        self.calls: dict[str, int] = {}
        self._visibility_seconds = visibility_seconds
        self._waits = clock is None
        self._clock: Clock = clock or SystemClock()
        self._lies = lies
        self._random = random.Random(seed)
        self._changed = threading.Condition(threading.RLock())
        self._rows: dict[str, _Row] = {}
        self._dead: dict[str, tuple[DeadLetter, float]] = {}
        self._num_sent = 0
        self._num_delivered = 0
        self._closed = False

    @property
    def name(self) -> str:
        """Address of the queue."""
        return "memory://"

    @property
    def visibility_seconds(self) -> float:
        """Visibility timeout given to each delivery."""
        return self._visibility_seconds

    def send(self, bodies: Sequence[bytes], *, delay_seconds: float = 0.0) -> list[str]:
        """Store messages and return their ids in order."""
        with self._changed:
            self._note_call("send")
            ids = []
            for body in bodies:
                self._num_sent += 1
                id_ = f"m{self._num_sent}"
                self._rows[id_] = _Row(id_, bytes(body), self._clock.unix_seconds(), self._add_to_now(delay_seconds))
                ids.append(id_)
            self._changed.notify_all()
            return ids

    def put_malformed(self, found: bytes, why: str = "a test put it there") -> str:
        """Store something that the queue cannot read, as somebody may who writes past its adapter; return its id."""
        with self._changed:
            (id_,) = self.send([found])
            self._rows[id_].malformed = f"message.malformed: {why}"
            return id_

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to max_messages; wait up to wait_seconds for the first, except on a fake clock."""
        give_up_at = time.monotonic() + wait_seconds
        with self._changed:
            while True:
                self._note_call("receive")
                if self._lies.empty_receive_ratio and self._random.random() < self._lies.empty_receive_ratio:
                    return []
                visible = self._visible()
                if self._lies.shuffle:
                    self._random.shuffle(visible)
                if visible:
                    return [self._lend(row) for row in visible[:max_messages]]
                left = give_up_at - time.monotonic()
                if left <= 0 or not self._waits or self._closed:
                    return []
                self._changed.wait(min(left, self._next_due_seconds()))

    def ack(self, receipts: Sequence[str]) -> dict[str, str]:
        """Remove messages for good."""
        with self._changed:
            self._note_call("ack")
            failures: dict[str, str] = {}
            for _, row in self._find_held(receipts, failures, stale_is_told=not self._lies.stale_acks_succeed):
                if self._random.random() < self._lies.resurrect_ratio:
                    row.receipt = ""
                    row.visible_at_ns = self._add_to_now(0)
                else:
                    del self._rows[row.id]
            self._changed.notify_all()
            return failures

    def nack(self, receipts: Sequence[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        """Offer messages again after a delay."""
        with self._changed:
            self._note_call("nack")
            failures: dict[str, str] = {}
            for _, row in self._find_held(receipts, failures):
                row.receipt = ""
                row.visible_at_ns = self._add_to_now(delay_seconds)
            self._changed.notify_all()
            return failures

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend the loans to this many seconds from now."""
        with self._changed:
            self._note_call("extend")
            failures: dict[str, str] = {}
            for _, row in self._find_held(receipts, failures):
                row.visible_at_ns = self._add_to_now(seconds)
            return failures

    def postpone(self, postponed: Sequence[Postponed]) -> dict[str, str]:
        """Offer messages again later as if they were new; see `protocols.Queue.postpone`."""
        with self._changed:
            self._note_call("postpone")
            failures: dict[str, str] = {}
            by_receipt = {one.message.receipt: one for one in postponed}
            for receipt, row in self._find_held(list(by_receipt), failures):
                one = by_receipt[receipt]
                # At the end of the order: it is offered as if it was new.
                self._rows[row.id] = _Row(
                    row.id, row.body, row.sent_at, self._add_to_now(one.delay_seconds), kept=one.kept
                )
            self._changed.notify_all()
            return failures

    def dead_letter(self, burials: Sequence[Burial]) -> dict[str, str]:
        """Move messages with their reasons to the dead letters."""
        with self._changed:
            self._note_call("dead_letter")
            failures: dict[str, str] = {}
            by_receipt = {one.message.receipt: one for one in burials}
            for receipt, row in self._find_held(list(by_receipt), failures):
                one = by_receipt[receipt]
                del self._rows[row.id]
                now = self._clock.unix_seconds()
                letter = DeadLetter(row.id, row.body, one.reason, row.receive_count, now, one.kept)
                self._dead[row.id] = (letter, row.sent_at)
            return failures

    def statistics(self) -> QueueStatistics:
        """Return exact counts."""
        with self._changed:
            self._note_call("statistics")
            visible = self._visible()
            lent = [row for row in self._rows.values() if row.receipt and row.visible_at_ns > self._clock.now_ns()]
            oldest = min((row.sent_at for row in visible), default=None)
            return QueueStatistics(
                visible=len(visible),
                in_flight=len(lent),
                delayed=len(self._rows) - len(visible) - len(lent),
                dead=len(self._dead),
                oldest_age_seconds=None if oldest is None else self._clock.unix_seconds() - oldest,
            )

    def peek(self, max_messages: int, *, dead: bool = False) -> list[Message] | list[DeadLetter]:
        """Return messages that could be received now, or dead letters, without touching them."""
        with self._changed:
            self._note_call("peek")
            if dead:
                return [letter for letter, _ in self._dead.values()][:max_messages]
            return [
                Message(row.id, row.body, "", row.receive_count, row.sent_at, row.kept, row.malformed)
                for row in self._visible()[:max_messages]
            ]

    def redrive(self, max_messages: int | None = None, *, rework: bool = False) -> int:
        """Move dead letters back with a receive count of zero and return how many."""
        with self._changed:
            self._note_call("redrive")
            chosen = list(self._dead)[:max_messages]
            for id_ in chosen:
                letter, sent_at = self._dead.pop(id_)
                kept = b"" if rework else letter.kept
                self._rows[id_] = _Row(id_, letter.body, sent_at, self._add_to_now(0), kept=kept)
            self._changed.notify_all()
            return len(chosen)

    def purge(self, *, dead: bool = False) -> int:
        """Remove all messages, or all dead letters, and return how many."""
        with self._changed:
            self._note_call("purge")
            if dead:
                count = len(self._dead)
                self._dead.clear()
            else:
                count = len(self._rows)
                self._rows.clear()
            return count

    def close(self) -> None:
        """Let go of waiting receivers; later calls raise QueueUnavailable."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _note_call(self, method: str) -> None:
        self.calls[method] = self.calls.get(method, 0) + 1
        if self._closed or not self.available:
            raise QueueUnavailable(f"memory://: {'closed' if self._closed else 'the test made it unavailable'}")

    def _add_to_now(self, seconds: float) -> int:
        return self._clock.now_ns() + round(seconds * 1e9)

    def _visible(self) -> list[_Row]:
        now = self._clock.now_ns()
        visible = [row for row in self._rows.values() if row.visible_at_ns <= now]
        visible.sort(key=lambda row: row.visible_at_ns)  # stable: the order sent among those of one moment
        return visible

    def _next_due_seconds(self) -> float:
        next_ns = min((row.visible_at_ns for row in self._rows.values()), default=None)
        return 60.0 if next_ns is None else max(0.0, (next_ns - self._clock.now_ns()) / 1e9)

    def _lend(self, row: _Row) -> Message:
        self._num_delivered += 1
        row.receive_count += 1
        row.receipt = f"{row.id}/{self._num_delivered}"
        twice = self._random.random() < self._lies.duplicate_ratio
        row.visible_at_ns = self._add_to_now(0 if twice else self._visibility_seconds)
        return Message(row.id, row.body, row.receipt, row.receive_count, row.sent_at, row.kept, row.malformed)

    def _find_held(
        self, receipts: Sequence[str], failures: dict[str, str], *, stale_is_told: bool = True
    ) -> list[tuple[str, _Row]]:
        """Return the rows that these receipts hold; fill in the failures of the others."""
        held = []
        for receipt in dict.fromkeys(receipts):
            row = self._rows.get(receipt.partition("/")[0])
            if row is None or row.receipt != receipt:
                if stale_is_told:
                    failures[receipt] = STALE
            elif self._random.random() < self._lies.batch_failure_ratio:
                failures[receipt] = "InternalError"
            else:
                held.append((receipt, row))
        return held


def lying(seed: int, **changes: float | bool) -> MemoryQueue:
    """Return a queue on the host's clock that tells every lie now and then; changes are fields of `Lies`."""
    lies = Lies(
        duplicate_ratio=0.05,
        resurrect_ratio=0.05,
        stale_acks_succeed=True,
        batch_failure_ratio=0.1,
        empty_receive_ratio=0.2,
        shuffle=True,
    )
    return MemoryQueue(lies=replace(lies, **changes), seed=seed)  # type: ignore[arg-type]
