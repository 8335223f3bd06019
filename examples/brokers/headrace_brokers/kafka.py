"""A topic of Kafka as a source: `kafka://host:9092/TOPIC?group=night&dead=TOPIC.dead`.

How this works: Kafka acknowledges no single message; a group has one offset for each partition, from which reading begins again
after a crash. So the offset that is committed is that of the lowest job that is not done, and what was done behind it is done
again after a crash: delivery is at least once. A partition whose lowest job is `AHEAD` messages behind gives nothing more until
that one ends. When a partition goes to another worker, what is done is committed first; jobs of it that end later count for
nothing here, and the other worker does them again.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.base.errors import BadMessage, SettingsError, SourceError
from headrace.base.plan import SourcePlan
from headrace.base.protocols import Source
from headrace.base.records import Job, Message, Outcome, OutcomeKind
from headrace.base.worker_slot import WorkerSlot
from headrace.sources.jobs import decode_message
from headrace_brokers.again import Again

log = logging.getLogger(__name__)

#: Tries of one job, unless the Plan says something else.
MAX_RECEIVES = 3
#: Messages of a partition that may be out or done behind the lowest that is not.
AHEAD = 10_000
#: After so long the partitions of a worker that is dead go to others.
SESSION_MS = 10_000
_COMMIT_SECONDS = 0.5
_FLUSH_SECONDS = 10.0


@dataclass(slots=True)
class Partition:
    """How far one partition is, as long as this worker has it."""

    number: int
    out: set[int] = field(default_factory=set)
    """Offsets of jobs that are not done."""
    next: int = -1
    """Behind the last that was received; -1: none was."""
    committed: int = -1
    is_ours: bool = True
    is_paused: bool = False

    @property
    def safe(self) -> int:
        """The offset from which reading may begin again."""
        return min(self.out, default=self.next)


@dataclass(frozen=True, slots=True)
class Received:
    """One message."""

    partition: Partition
    offset: int
    body: bytes
    sent_at: float


class KafkaSource(Source):
    """Jobs from one topic. `receive` and `settle` from any thread.

    Args:
        address: Its servers and the topic; `?group=NAME` (headrace), and `&dead=TOPIC` for what fails for good.
        drain: End at the end of all partitions that this worker has, once all of it is done.
    """

    def __init__(self, address: str, *, drain: bool = False) -> None:
        parts = urlsplit(address)
        given = dict(parse_qsl(parts.query))
        self._topic = parts.path.strip("/")
        self._group, self._dead = given.pop("group", "headrace"), given.pop("dead", "")
        if not parts.netloc or not self._topic or given:
            raise SettingsError("an address of Kafka is kafka://HOST:9092,HOST:9092/TOPIC?group=NAME&dead=TOPIC")
        self._servers, self._drain = parts.netloc, drain
        self._name = f"the Kafka topic {self._topic} at {parts.netloc}"
        self._lock = threading.RLock()
        self._partitions: dict[int, Partition] = {}
        self._ended: set[int] = set()
        self._again: Again[Received] = Again()
        self._max_receives = MAX_RECEIVES
        self._commit_at = 0.0
        self._consumer: Any = None
        self._producer: Any = None

    @property
    def is_endless(self) -> bool:
        """Whether only a signal ends it."""
        return not self._drain

    def take(self, slot: WorkerSlot) -> None:
        """Share the topic with other workers: the group decides who has which partition."""

    def open(self, settings: SourcePlan) -> None:
        """Join the group."""
        self._max_receives = settings.max_receives or MAX_RECEIVES
        servers = {"bootstrap.servers": self._servers}
        try:
            self._consumer = Consumer(
                {
                    **servers, "group.id": self._group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
                    "enable.partition.eof": True, "session.timeout.ms": SESSION_MS,
                }
            )  # fmt: skip
            self._producer = Producer(servers) if self._dead else None
            self._consumer.list_topics(self._topic, timeout=10)
            self._consumer.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        except KafkaException as error:
            raise SourceError(f"{self._name} cannot be opened: {error.args[0].str()}") from None

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs, [] if none came in time, None once a drained topic is at its end."""
        with self._lock:
            if self._consumer is None:
                return None
            again = self._again.take(limit)
            if again:
                return [self._job(*one) for one in again]
            jobs = []
            for record in self._consumer.consume(limit, timeout=min(wait_seconds, 0.1)):
                job = self._read(record)
                if job is not None:
                    jobs.append(job)
            return jobs or (None if self._is_drained() else [])

    def tend(self) -> None:
        """Commit what is safe, now and then."""
        with self._lock:
            now = time.monotonic()
            if self._consumer is not None and now >= self._commit_at:
                self._commit_at = now + _COMMIT_SECONDS
                self._commit(list(self._partitions.values()), wait=False)

    def close(self) -> None:
        """Commit what is safe and leave the group."""
        with self._lock:
            if self._consumer is not None:
                self._commit(list(self._partitions.values()), wait=True)
                self._consumer.close()
                self._consumer = None

    # --- jobs

    def _read(self, record: Any) -> Job | None:
        error = record.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                self._ended.add(record.partition())
            elif error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SourceError(f"{self._name}: {error.str()}")
            else:
                log.warning("%s: %s", self._name, error.str())
            return None
        partition = self._partitions.setdefault(record.partition(), Partition(record.partition()))
        self._ended.discard(partition.number)
        partition.next = record.offset() + 1
        partition.out.add(record.offset())
        self._hold(partition)
        return self._job(Received(partition, record.offset(), record.value() or b"", record.timestamp()[1] / 1000), 1)

    def _job(self, received: Received, attempt: int) -> Job:
        def settle(job: Job | None, outcome: Outcome) -> None:
            self._settle(received, attempt, outcome)

        id_ = f"{self._topic}-{received.partition.number}-{received.offset}"
        try:
            job = decode_message(Message(id_, received.body, id_, attempt, received.sent_at), settle=settle)
        except BadMessage as error:
            job = Job(id_, b"", attempt=attempt, settle=settle)
            job.verdict = Outcome(OutcomeKind.REJECTED, error.reason)
        job.max_attempts = self._max_receives
        return job

    def _settle(self, received: Received, attempt: int, outcome: Outcome) -> None:
        with self._lock:
            partition = received.partition
            if not partition.is_ours:
                return
            if outcome.kind is OutcomeKind.RETRY and attempt < self._max_receives:
                self._again.put(received, attempt + 1, outcome.delay_seconds)
                return
            if outcome.kind is OutcomeKind.RETURNED:
                return  # not done: the offset stays before it, for whoever reads next
            if outcome.kind is not OutcomeKind.DELIVERED and not self._bury(received, outcome.reason):
                self._again.put(received, attempt, 1.0)
                return
            partition.out.discard(received.offset)
            self._hold(partition)

    def _bury(self, received: Received, reason: str) -> bool:
        """Return whether what failed for good is in the topic of the dead, or is to be left behind."""
        where = f"{self._topic}, partition {received.partition.number}, offset {received.offset}"
        if self._producer is None:
            log.warning("%s is left behind: %s", where, reason)
            return True
        headers = {"reason": reason[:2000].encode(), "offset": str(received.offset).encode()}
        self._producer.produce(self._dead, received.body, headers=headers)
        if self._producer.flush(_FLUSH_SECONDS):
            log.warning("%s cannot be written to %s yet; it is tried again", where, self._dead)
            return False
        return True

    def _is_drained(self) -> bool:
        """Whether every partition of this worker is at its end, and all jobs are done."""
        if not self._drain or not self._partitions or self._again:
            return False
        return all(one.number in self._ended and not one.out for one in self._partitions.values())

    # --- partitions

    def _hold(self, partition: Partition) -> None:
        """Let a partition rest whose lowest job is far behind, and go on once that is done."""
        is_far = partition.next - partition.safe >= AHEAD
        if is_far != partition.is_paused and self._consumer is not None:
            change = self._consumer.pause if is_far else self._consumer.resume
            change([TopicPartition(self._topic, partition.number)])
            partition.is_paused = is_far

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        for one in partitions:
            self._partitions[one.partition] = Partition(one.partition)

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        self._commit(
            [self._partitions[one.partition] for one in partitions if one.partition in self._partitions], wait=True
        )
        self._lost(consumer, partitions)

    def _lost(self, consumer: Any, partitions: list[Any]) -> None:
        for one in partitions:
            partition = self._partitions.pop(one.partition, None)
            if partition is not None:
                partition.is_ours = False

    def _commit(self, partitions: list[Partition], *, wait: bool) -> None:
        moved = [one for one in partitions if one.next >= 0 and one.safe != one.committed]
        if not moved:
            return
        try:
            offsets = [TopicPartition(self._topic, one.number, one.safe) for one in moved]
            self._consumer.commit(offsets=offsets, asynchronous=not wait)
        except KafkaException as error:  # what is not committed is done again
            log.warning("%s: the offset could not be committed: %s", self._name, error.args[0].str())
            return
        for one in moved:
            one.committed = one.safe
