"""Sources that end after a time: a list given around in a circle, and a queue in memory that is fed while the run goes on."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.base.plan import SourcePlan
from headrace.base.records import Job, Message, Payload
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.testing.memory_queue import MemoryQueue

_FEED_EVERY_SECONDS = 0.005
_TOP_UP_EVERY_SECONDS = 0.05
#: Jobs that wait where there is to be a backlog: more than a run receives between two looks, and few enough that what comes
#: back to the queue is received again within the run.
_BACKLOG = 150


class RepeatedList(FiniteSource):
    """The same payloads again and again, until some seconds after the first was given out.

    Args:
        payloads: At least one.
        seconds: How long.
    """

    def __init__(self, payloads: Sequence[Payload], seconds: float) -> None:
        super().__init__()
        self._payloads = payloads
        self._seconds = seconds

    def entries(self) -> Iterator[Entry]:
        """Return them until the time is over."""
        ends = time.monotonic() + self._seconds
        for number, payload in enumerate(itertools.cycle(self._payloads)):
            if time.monotonic() >= ends:
                return
            yield Entry(str(number), payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """How a queue service behaves."""

    rate_per_second: float | None = None
    """Jobs that arrive, evenly spaced; None: there is always a backlog."""
    round_trip_seconds: float = 0.0
    """Of each receive."""
    most_messages: int = 10
    """Given to one receive."""
    visibility_seconds: float = 30.0
    extends: bool = True
    """Whether loans may be extended; a worker without the permission has each only for the visibility timeout."""
    max_receives: int = 5


class BrokerQueue(MemoryQueue):
    """A queue in memory that behaves like a broker far away.

    Args:
        broker: How.
        clock: See `MemoryQueue`.
    """

    def __init__(self, broker: Broker, clock: Clock | None = None) -> None:
        super().__init__(visibility_seconds=broker.visibility_seconds, clock=clock)
        self._broker = broker

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Return messages after a round trip."""
        if self._broker.round_trip_seconds:
            time.sleep(self._broker.round_trip_seconds)
        return super().receive(min(max_messages, self._broker.most_messages), wait_seconds=wait_seconds)

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend the loans, or refuse to."""
        return super().extend(receipts, seconds) if self._broker.extends else dict.fromkeys(receipts, "AccessDenied")


class FedQueue(QueueSource):
    """Jobs from a broker's queue, fed by a thread of its own, until some seconds after the second receive.

    The first one is there at once; a run that lets it go ahead alone, and warms up with it, finds no more waiting afterwards.

    Args:
        payloads: What the jobs carry, around in a circle; at least one.
        seconds: How long.
        broker: How the queue behaves.
    """

    def __init__(self, payloads: Sequence[str] | Sequence[bytes], seconds: float, broker: Broker) -> None:
        self._fed = BrokerQueue(broker)
        super().__init__(self._fed, max_receives=broker.max_receives)
        # Without ids: a body that is sent twice is two jobs.
        self._bodies = itertools.cycle([encode_job(payload, id="") for payload in payloads])
        self._seconds = seconds
        self._rate_per_second = broker.rate_per_second
        self._starting = threading.Lock()
        self._is_first = True
        self._ends: float | None = None
        self._stopping = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="feeder", daemon=True)

    def open(self, settings: SourcePlan) -> None:
        """Connect."""
        super().open(settings)
        if self._rate_per_second is None:
            self._top_up()

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return jobs, or None when the time is over."""
        with self._starting:
            if self._is_first:
                self._is_first = False
                if self._rate_per_second is not None:
                    self._fed.send([next(self._bodies)])
                return super().receive(limit, wait_seconds)
            if self._ends is None:
                self._ends = time.monotonic() + self._seconds
                self._feeder.start()
        left = self._ends - time.monotonic()
        return super().receive(limit, min(wait_seconds, left)) if left > 0 else None

    @property
    def is_exhausted(self) -> bool:
        """Whether the time is over."""
        return self._ends is not None and time.monotonic() >= self._ends

    def close(self) -> None:
        """Stop feeding, and disconnect."""
        self._stopping.set()
        if self._feeder.is_alive():
            self._feeder.join()
        super().close()

    def _feed(self) -> None:
        started, sent = time.monotonic(), 0
        every_seconds = _TOP_UP_EVERY_SECONDS if self._rate_per_second is None else _FEED_EVERY_SECONDS
        while not self._stopping.wait(every_seconds):
            if self._rate_per_second is None:
                self._top_up()
            else:
                due = int((time.monotonic() - started) * self._rate_per_second) - sent
                self._fed.send(list(itertools.islice(self._bodies, due)))
                sent += due

    def _top_up(self) -> None:
        missing = _BACKLOG - self._fed.statistics().visible
        if missing > 0:
            self._fed.send(list(itertools.islice(self._bodies, missing)))
