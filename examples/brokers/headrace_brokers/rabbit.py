"""A queue of RabbitMQ as a source: `amqp://user:password@host/vhost?queue=jobs`.

How this works: one thread has the connection, since pika's belong to a thread. What the broker sends waits in a deque, at most
`prefetch` messages that are not acknowledged; who settles a job asks that thread to acknowledge it. When the connection
breaks, the broker gives all that was not acknowledged to others: jobs of the old connection that end later are acknowledged
nowhere, and may be done twice.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import pika
import pika.exceptions

from headrace.base.errors import BadMessage, SettingsError, SourceError
from headrace.base.plan import SourcePlan
from headrace.base.protocols import Source
from headrace.base.records import Job, Message, Outcome, OutcomeKind
from headrace.base.worker_slot import WorkerSlot
from headrace.sources.jobs import decode_message
from headrace_brokers.again import Again

log = logging.getLogger(__name__)

#: Tries of one job, unless the Plan says something else.
MAX_RECEIVES = 5
PREFETCH = 200
_PAUSES = (0.1, 0.5, 2.0, 5.0)
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as the broker sent it."""

    connection: int
    tag: int
    id: str
    body: bytes
    attempt: int


class RabbitSource(Source):
    """Jobs from one queue. `receive` and `settle` from any thread.

    Args:
        address: With `?queue=NAME`, and `&prefetch=200`: messages that this process may have at most.
        drain: End when the queue is empty and all that this process had is done.
    """

    def __init__(self, address: str, *, drain: bool = False) -> None:
        parts = urlsplit(address)
        given = dict(parse_qsl(parts.query))
        self._queue = given.pop("queue", "")
        prefetch = given.pop("prefetch", str(PREFETCH))
        if not self._queue or not prefetch.isdigit() or not int(prefetch) or given:
            raise SettingsError("an address of RabbitMQ is amqp://HOST/VHOST?queue=NAME, and &prefetch=NUMBER")
        self._prefetch = int(prefetch)
        self._name = f"the RabbitMQ queue {self._queue} at {parts.hostname}"
        self._parameters = pika.URLParameters(urlunsplit((*parts[:3], "heartbeat=30", "")))
        self._drain = drain
        self._changed = threading.Condition()
        self._ready: deque[Delivery] = deque()
        self._again: Again[Delivery] = Again()
        self._max_receives = MAX_RECEIVES
        self._num_out = 0
        self._number = 0
        self._asked: deque[Callable[[Any], object]] = deque()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._empty = False

    @property
    def is_endless(self) -> bool:
        """Whether only a signal ends it."""
        return not self._drain

    def take(self, slot: WorkerSlot) -> None:
        """Share the queue with other workers: the broker decides who gets what."""

    def open(self, settings: SourcePlan) -> None:
        """Connect; SourceError if that fails."""
        self._max_receives = settings.max_receives or MAX_RECEIVES
        self._closing.clear()
        connection = self._connect()
        self._thread = threading.Thread(target=self._serve, args=(connection,), name="rabbitmq", daemon=True)
        self._thread.start()

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs, [] if none came in time, None once a drained queue is empty."""
        give_up_at = time.monotonic() + wait_seconds
        with self._changed:
            while not self._closing.is_set():
                taken = self._again.take(limit)
                while self._ready and len(taken) < limit:
                    delivery = self._ready.popleft()
                    taken.append((delivery, delivery.attempt))
                if taken:
                    self._num_out += len(taken)
                    return [self._job(*one) for one in taken]
                if self._drain and self._empty and not self._num_out and not self._again:
                    return None
                left = give_up_at - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(min(left, _POLL_SECONDS))
        return None

    def close(self) -> None:
        """Send the last acknowledgements and disconnect; the broker gives the rest to others."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(5.0)

    # --- jobs

    def _job(self, delivery: Delivery, attempt: int) -> Job:
        def settle(job: Job | None, outcome: Outcome) -> None:
            self._settle(delivery, attempt, outcome)

        message = Message(delivery.id, delivery.body, str(delivery.tag), attempt, time.time())
        try:
            job = decode_message(message, settle=settle)
        except BadMessage as error:
            job = Job(delivery.id, b"", attempt=attempt, settle=settle)
            job.verdict = Outcome(OutcomeKind.REJECTED, error.reason)
        job.max_attempts = self._max_receives
        return job

    def _settle(self, delivery: Delivery, attempt: int, outcome: Outcome) -> None:
        with self._changed:
            self._num_out -= 1
            self._empty = False  # until it was looked at again
            if outcome.kind is OutcomeKind.RETRY and attempt < self._max_receives:
                self._again.put(delivery, attempt + 1, outcome.delay_seconds)
            elif outcome.kind is OutcomeKind.RETURNED:
                self._ask(delivery, lambda channel: channel.basic_nack(delivery.tag))
            elif outcome.kind is OutcomeKind.DELIVERED:
                self._ask(delivery, lambda channel: channel.basic_ack(delivery.tag))
            else:
                self._ask(delivery, lambda channel: self._bury(channel, delivery, outcome.reason))
            self._changed.notify_all()

    def _ask(self, delivery: Delivery, what: Callable[[Any], object]) -> None:
        if delivery.connection == self._number:  # else the broker has given it to another
            self._asked.append(what)

    def _bury(self, channel: Any, delivery: Delivery, reason: str) -> None:
        """Store it among the dead before it is removed: the channel confirms what it publishes."""
        properties = pika.BasicProperties(
            delivery_mode=2, message_id=delivery.id, headers={"x-reason": reason[:2000], "x-attempt": delivery.attempt}
        )
        channel.basic_publish("", f"{self._queue}.dead", delivery.body, properties, mandatory=True)
        channel.basic_ack(delivery.tag)

    # --- the connection's thread

    def _connect(self) -> Any:
        try:
            connection = pika.BlockingConnection(self._parameters)
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(f"{self._queue}.dead", durable=True)
            channel.queue_declare(self._queue, passive=True)
            channel.basic_qos(prefetch_count=self._prefetch)
        except Exception as error:  # pika's own, and those of sockets; their texts may hold the address
            raise SourceError(f"{self._name} cannot be opened: {type(error).__name__}") from None
        with self._changed:
            self._number += 1
            self._ready.clear()
            self._again.clear()
            self._asked.clear()
            self._empty = False
        channel.basic_consume(self._queue, self._take_in)
        return connection, channel

    def _take_in(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        count = (properties.headers or {}).get("x-delivery-count", int(method.redelivered))
        id_ = properties.message_id or f"{self._queue}-{method.delivery_tag}-{self._number}"
        with self._changed:
            self._ready.append(Delivery(self._number, method.delivery_tag, id_, body, int(count) + 1))
            self._changed.notify_all()

    def _serve(self, opened: Any) -> None:
        failures = 0
        while True:
            try:
                connection, channel = opened or self._connect()
                opened, failures = None, 0
                self._serve_connection(connection, channel)
                return
            except (SourceError, pika.exceptions.AMQPError, OSError) as error:
                log.warning("%s does not answer: %s; it is tried again", self._name, type(error).__name__)
                if self._closing.wait(_PAUSES[min(failures, len(_PAUSES) - 1)]):
                    return
                failures += 1

    def _serve_connection(self, connection: Any, channel: Any) -> None:
        while not self._closing.is_set():
            self._answer(channel)
            connection.process_data_events(time_limit=_POLL_SECONDS)
            if self._drain and not self._num_out and not self._ready:
                self._look(channel)
        channel.basic_cancel(channel.consumer_tags[0])
        self._answer(channel)
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()

    def _answer(self, channel: Any) -> None:
        while self._asked:
            self._asked.popleft()(channel)

    def _look(self, channel: Any) -> None:
        left = channel.queue_declare(self._queue, passive=True).method.message_count
        with self._changed:
            self._empty = not left and not self._ready and not self._num_out and not self._asked
            self._changed.notify_all()
