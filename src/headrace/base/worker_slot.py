"""State that a worker process shares with its supervisor, as the worker sees it.

A run without a supervisor has a slot too: the next run takes over the messages that it left in flight.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Protocol, runtime_checkable

import msgspec

from headrace.base.crash_recovery import RecoveryFolder
from headrace.base.in_flight import InFlight, InFlightTable
from headrace.base.observer import Observer
from headrace.base.policies.blame import BlameBook, Death, Elsewhere, Known, Record, Redriven
from headrace.base.records import Job, Outcome

#: Between two signs of life.
_PULSE_SECONDS = 0.1
#: Between two looks at what other machines know, and how long the first one may take.
TRADE_SECONDS, _FIRST_TRADE_SECONDS = 2.0, 10.0
#: Suspects that other machines are told of at most.
_MOST_NEWS = 1000
#: Takes a queue's identity and what is known here of its messages, and returns what other machines know.
Exchange = Callable[[str, Mapping[str, Record]], Mapping[str, Record]]
#: Name of the table of a run without a supervisor.
ALONE = "alone"
_news = msgspec.msgpack.Decoder(Death | Redriven | Known)


class Inherited(msgspec.Struct, frozen=True, tag=True):
    """A worker found the recovery folder of a dead process, and moved it into its supervisor's folder."""

    folder: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The last message of a worker."""

    status: int | None = None
    """Its exit status; None: that of the process counts."""
    document: bytes = b""
    """The result of its run; empty: none."""
    queue: str = ""
    """Address of its queue, as `headrace queue` takes it and without secrets; empty: it has none."""
    is_drained: bool = False
    """Whether a signal ended it, and it finished all that it had of a queue without an end."""


@dataclass
class WorkerSlot:
    """State that one worker process shares with its supervisor, from the fork on. Thread-safe."""

    number: int
    """Which worker, from 0."""
    generation: int
    """Number of the process in this slot, from 1."""
    num_workers: int
    """Workers that share the machine."""
    table: InFlightTable
    blame: BlameBook
    """The known deaths at the fork; `hear` adds later ones."""
    connection: Connection | None
    """Receives news of deaths and sends the worker's result; None: there is no supervisor."""
    orphans: Sequence[InFlight] = ()
    """Messages that the process before had in flight."""
    recovery: RecoveryFolder | None = None
    """Folder in which the messages in flight outlive the supervisor too; None: there is none."""
    exchange: Exchange | None = None
    """How machines tell one another of messages that were in work at deaths; None: they do not."""
    _queue: str = ""
    _left: threading.Event = field(default_factory=threading.Event)
    _serving: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    """One byte that both processes see: whether it is yet to say that it serves."""
    _is_changed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def alone(cls) -> WorkerSlot | None:
        """Return the slot of a run without a supervisor; None if there is no memory that outlives it."""
        recovery = RecoveryFolder.create()
        if recovery is None:
            return None
        return cls(0, 1, 1, recovery.table(ALONE), BlameBook(), None, (), recovery)

    def begin(self) -> None:
        """Give signs of life from now to the end of the process, and take the news.

        From a thread that does nothing else: it stops with the interpreter, and not with a service, a disk or an observer
        that is slow to answer.
        """
        self.table.beat()
        threading.Thread(target=self._live, name="pulse", daemon=True).start()

    def expect_serving(self) -> None:
        """Say, before `begin`, that this worker is there for others only once it says so by `note_serving`."""
        self._serving[0] = 1

    def note_serving(self) -> None:
        """Say that others can be sent away now, as this worker does what they did."""
        self._serving[0] = 0

    @property
    def does_its_work(self) -> bool:
        """Whether the worker has opened its models, and serves if it is to serve; for its supervisor."""
        return self.table.num_beats > 0 and not self._serving[0]

    def _live(self) -> None:
        pause = threading.Event()
        while True:
            self.hear()
            pause.wait(_PULSE_SECONDS)
            self.table.beat()

    def hear(self) -> None:
        """Take note of what happened in other workers."""
        with self._lock:
            if self.connection is None:
                if self._is_changed and self.recovery is not None:
                    self._is_changed = False
                    self.recovery.keep(self.blame)
                return
            while self.connection.poll():
                try:
                    news = self.connection.recv_bytes()
                except EOFError:  # the supervisor is dead, and so will this process be
                    return
                match _news.decode(news):
                    case Redriven(id=message_id, times=times):
                        self.blame.forget(message_id, times)
                    case Known(records=records):
                        self.blame.learn(records)
                    case death:
                        self.blame.note_death(death)
                self.table.note_news()

    def inherit(self, queue: str) -> list[InFlight]:
        """Take over the records of dead processes of the queue, and return the messages they had in flight.

        Other machines are told before, so that whoever gets one of those messages next knows of it.
        """
        messages = [] if self.recovery is None else self._take_over(self.recovery, queue)
        if self.exchange is not None:
            self._queue = queue
            traded = threading.Event()
            threading.Thread(target=self._trade_on, args=(traded,), name="suspects", daemon=True).start()
            traded.wait(_FIRST_TRADE_SECONDS)  # a place that hangs holds up no run
        return messages

    def _take_over(self, recovery: RecoveryFolder, queue: str) -> list[InFlight]:
        messages = []
        with self._lock:
            for left in recovery.serve(queue):
                self.blame.learn(left.book.records)
                messages += left.messages
                if self.connection is None:
                    recovery.keep(self.blame, left.folder)
                else:
                    self._say(Inherited(left.folder))
        return messages

    def _trade_on(self, traded: threading.Event) -> None:
        while not self._left.is_set():
            self.trade()
            traded.set()
            self._left.wait(TRADE_SECONDS)

    def trade(self) -> None:
        """Tell other machines what is known here, and take note of what they know."""
        if self.exchange is None:
            return
        with self._lock:
            known = {name: replace(one) for name, one in self.blame.news(_MOST_NEWS).items()}
        found = self.exchange(self._queue, known)
        with self._lock:
            new = self.blame.join(found)
            if new:
                self._is_changed = True
                self._say(Elsewhere(new))  # who counts the next death has to know

    def leave(self, *, is_drained: bool) -> None:
        """Note the orderly end of a run without a supervisor, and whether its queue is empty. Repeating it does nothing."""
        self._left.set()
        if self.connection is not None:
            return
        with self._lock:
            recovery, self.recovery = self.recovery, None
            if recovery is not None:
                recovery.end({} if is_drained else self.blame.records)

    def record(self, message_id: str, receive_count: int) -> Record | None:
        """Return the record of a message that was in flight when a worker died; None if there is none."""
        with self._lock:
            record = self.blame.get(message_id)
            if record is None or receive_count > record.deaths:
                return record
            # Each death was a delivery. With fewer deliveries than deaths, somebody redrove the message, and its count began
            # again. Then its record must go, or later deliveries would be judged by the old deaths.
            times = record.redriven + 1
            self.blame.forget(message_id, times)
            self._is_changed = True
            self._say(Redriven(message_id, times))
            return None

    def finish(self, ended: Ended) -> None:
        """Tell the supervisor that this worker ends by itself."""
        with self._lock:
            self._say(ended)

    def _say(self, what: Redriven | Inherited | Elsewhere | Ended) -> None:
        if self.connection is None:
            return
        with suppress(OSError):  # the supervisor is dead, and so will this process be
            self.connection.send_bytes(msgspec.msgpack.encode(what))


@runtime_checkable
class TakesWorkerSlot(Protocol):
    """A source that several workers can share, because somebody else decides who gets what."""

    def take(self, slot: WorkerSlot) -> None:
        """Record received messages in the slot, and use its records of deaths; call before `open`."""
        ...


@runtime_checkable
class SharesSuspects(Protocol):
    """A source of which workers on other machines receive too, and can be told what kills workers."""

    def share_suspects(self, exchange: Exchange) -> None:
        """Tell the others, and listen to them; call before `open`."""
        ...


class OutcomeCounter(Observer):
    """Counts the outcomes of deliveries in memory that the supervisor reads, even if this process dies."""

    def __init__(self, table: InFlightTable) -> None:
        self._table = table

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count it."""
        self._table.count(outcome.kind)


@contextmanager
def provide_own_slot(source: object, slot: WorkerSlot | None) -> Iterator[None]:
    """Give a source a slot as long as a run without a supervisor lasts, whether or not it ever opens its queue.

    Args:
        source: Any; those that no workers can share get none.
        slot: Of a supervisor's worker, which has its own; None: there is no supervisor.
    """
    alone = WorkerSlot.alone() if slot is None and isinstance(source, TakesWorkerSlot) else None
    if alone is None or not isinstance(source, TakesWorkerSlot):
        yield
        return
    source.take(alone)
    try:
        yield
    finally:
        alone.leave(is_drained=False)
