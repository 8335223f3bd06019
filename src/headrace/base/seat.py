"""A worker's seat beside its supervisor: what the two of them share, as the worker sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Protocol, runtime_checkable

import msgspec

from headrace.base.in_flight import InFlight, InFlightTable
from headrace.base.observer import Observer
from headrace.base.policies.blame import BlameBook, Death, Record
from headrace.base.records import Job, Outcome


@dataclass
class Seat:
    """What one worker process has of its supervisor, from its fork on. Thread-safe."""

    number: int
    """Which worker, from 0."""
    life: int
    """Which process in that seat, from 1."""
    num_workers: int
    """Workers that share the machine."""
    table: InFlightTable
    blame: BlameBook
    """What was known at the fork; `hear` brings the news."""
    connection: Connection
    """News of deaths come in, the worker's result goes out."""
    orphans: Sequence[InFlight] = ()
    """What the process before had in flight."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hear(self) -> None:
        """Take note of the deaths of other workers."""
        with self._lock:
            while self.connection.poll():
                try:
                    news = self.connection.recv_bytes()
                except EOFError:  # the supervisor is dead, and so will this process be
                    return
                self.blame.died(msgspec.msgpack.decode(news, type=Death))
                self.table.heard()

    def record(self, message_id: str, receive_count: int) -> Record | None:
        """Return what is known about a message that was in flight when a worker died; None: nothing."""
        with self._lock:
            record = self.blame.get(message_id)
            # Each death was a delivery. Fewer of them: somebody redrove the message, and its count began anew.
            return record if record is not None and receive_count > record.deaths else None

    def finish(self, document: bytes) -> None:
        """Tell the supervisor that this worker ends by itself, and what came of it."""
        self.connection.send_bytes(document)


@runtime_checkable
class TakesSeat(Protocol):
    """A source that several workers can share, because somebody else decides who gets what."""

    def take(self, seat: Seat) -> None:
        """Note what is received there, and heed what is known; before `open`."""
        ...


class OutcomeCounter(Observer):
    """Counts how deliveries end where the supervisor can read it, whatever becomes of this process."""

    def __init__(self, table: InFlightTable) -> None:
        self._table = table

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count it."""
        self._table.count(outcome.kind)


def with_beat(tick: Callable[[], object], seat: Seat) -> Callable[[], object]:
    """Return a tick that also gives a sign of life and takes the news."""

    def both() -> None:
        seat.table.beat()
        seat.hear()
        tick()

    return both
