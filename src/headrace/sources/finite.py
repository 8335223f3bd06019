"""The base of sources that end: jobs in a fixed order, retries kept in memory, outcomes counted.

Nothing here survives the run: a job that was retried too often is counted as dead-lettered and logged with its reason. To
resume a run, `pipeline.checkpoint` passes in an `WorkList`: it holds the remaining jobs and records how they end.

A job for which nothing was tried, because its host is slow or its circuit breaker open, is put aside until all other jobs were
given out. Then it is offered again as if it was new. This happens once, so that the run ends: afterwards it waits, or each
refusal counts as a try.
"""

from __future__ import annotations

import abc
import contextlib
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.base.plan import SourcePlan
from headrace.base.protocols import Source
from headrace.base.records import Job, Outcome, OutcomeKind, Payload
from headrace.base.settings import check

#: An iterator that takes so long is not asked for more while what it gave could be worked on.
_SLOW_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """The parts of a job, from which each try is made."""

    id: str
    payload: Payload
    attributes: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    """Why it may reach no stage, with a code in front: the job is rejected. Empty: it may."""
    stream: str | None = None
    """The stream that a frame belongs to; None for single images."""
    sequence: int | None = None
    """Position in the stream; None: the position in the source."""

    def again(self, turn: int) -> Entry:
        """Return the same for the turn of this number, from 1; its position is a later one then."""
        return self if turn == 1 else replace(self, id=f"{self.id}#{turn}", sequence=None)


@dataclass(slots=True)
class FiniteCounts:
    """Exact counts of jobs; a retried job ends in one of the others later."""

    received: int = 0
    """First deliveries."""
    delivered: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    retried: int = 0
    returned: int = 0
    postponed: int = 0
    """Part of `retried`: jobs that were put aside until the end."""


#: Outcomes after which the job may be given out once more.
_COMES_BACK = (OutcomeKind.RETURNED, OutcomeKind.RETRY)
#: The most jobs that are put aside: each is an address in memory.
MOST_ASIDE = 100_000
#: The most bytes of frames that are kept where the same ones are needed again.
MOST_KEPT_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class WorkList:
    """The remaining jobs of a source, and the functions that record how they end."""

    entries: Sequence[Entry]
    num_alone: int
    """The first jobs that are given out one at a time, each when nothing else is in flight."""
    given_alone: Callable[[str | None], object]
    """Called with the id of each of these before it is given out, and with None when the last one has ended."""
    settled: Callable[[str, Outcome], object]
    """Called with the id and its final outcome, before the next job is given out."""
    tend: Callable[[], object]
    """Called every few tens of milliseconds."""
    ended: Collection[str] = frozenset()
    """For a source that cannot list its jobs: the ids of those that ended before. Its `entries` are those given out alone,
    with no payload; it gives out all others after them."""


class FiniteSource(Source):
    """A source with an end. Subclasses list the jobs; `receive` and `settle` are thread-safe.

    Args:
        max_receives: Tries of one job, unless a Plan sets them.
    """

    #: The program itself lists the items, so they may name files of this machine.
    is_remote = False
    #: Of a portion, how many items the whole had when it was last listed; None: not known, or no portion.
    num_listed: int | None = None

    def __init__(self, *, max_receives: int = 3) -> None:
        is_count = isinstance(max_receives, int) and not isinstance(max_receives, bool) and max_receives >= 1
        check(is_count, "max_receives", max_receives, "a whole number >= 1")
        self._max_receives = max_receives
        self._open: _OpenFinite | None = None
        self._work_list: WorkList | None = None
        self._goes_around = False

    @property
    def where(self) -> str | None:
        """Text that identifies this source among its kind, such as a path; None: runs over it keep no checkpoint."""
        return None

    @property
    def serves_one_run(self) -> bool:
        """Whether its items can be read once only."""
        return False

    @property
    def max_receives(self) -> int:
        """Tries of one job, unless a Plan sets them."""
        return self._max_receives

    @contextlib.contextmanager
    def trying_once(self) -> Iterator[None]:
        """Offer no failed job again in the runs of a `with` block, unless a Plan says how often."""
        before, self._max_receives = self._max_receives, 1
        try:
            yield
        finally:
            self._max_receives = before

    @contextlib.contextmanager
    def going_around(self) -> Iterator[None]:
        """Begin again after the last job in the runs of a `with` block, which a limit ends; ids are `ID#2` then, and so on."""
        self._goes_around = True
        try:
            yield
        finally:
            self._goes_around = False

    def follow(self, work_list: WorkList | None) -> None:
        """Give out the jobs of a work list from the next `open` on; None: all jobs."""
        self._work_list = work_list

    @abc.abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Return all jobs in order; called by `open`, and read while the run goes on.

        Raises:
            SourceError: If the source cannot be read at all; names the path.
        """

    @property
    def lists_ahead(self) -> bool:
        """Whether all jobs are known before the first is given out; False: `entries` costs as much as a run."""
        return True

    def parts(self) -> Iterator[Entry]:
        """Return what a resumed run compares with its first start: the jobs, or what they come from if not `lists_ahead`.

        The attributes of what jobs come from tell whether it is still the same: if they differ, the run is not resumed.
        """
        return self.entries()

    def job_ids(self) -> Callable[[str], bool]:
        """Return what tells whether a job may have an id; asked where `lists_ahead` is False."""
        return {entry.id for entry in self.entries()}.__contains__

    def owns(self, item: str) -> bool:
        """Return whether a result of this id is of this source: others may write to the same table."""
        return True

    def with_parts(self, name: str, holds: Callable[[str], bool]) -> FiniteSource | None:
        """Return this source with those parts alone that are held by name; None: it has no parts but its jobs.

        Args:
            name: Of the portion that they are, for `where`.
            holds: Told the id of one of `parts`.
        """
        return None

    def remaining(self) -> Iterator[Entry | None]:
        """Return the jobs of a run: all, or those of the work list. None among them: the next one is not there yet."""
        return self.entries() if self._work_list is None else iter(self._work_list.entries)

    def _rounds(self) -> Iterator[Entry | None]:
        """Return the jobs of a run, again and again if they are to be."""
        return around(self.remaining) if self._goes_around else self.remaining()

    def open(self, settings: SourcePlan) -> None:
        """Find the jobs."""
        tries = self._max_receives if settings.max_receives is None else settings.max_receives
        self._open = _OpenFinite(self._rounds(), tries, settings.max_in_flight, self._work_list)

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs; [] while others may still be retried; None at the end."""
        return self._require_open().receive(limit, wait_seconds)

    @property
    def is_exhausted(self) -> bool:
        """Whether every job was given out."""
        return self._open is not None and self._open.is_exhausted

    @property
    def was_exhausted(self) -> bool:
        """Whether every job had been given out when the last run ended."""
        return self._open is not None and self._open.was_exhausted

    def tend(self) -> None:
        """Do nothing: this source needs no upkeep."""
        if self._work_list is not None:
            self._work_list.tend()

    def in_flight_limit(self, throughput: float | None, at_least: int) -> int | None:
        """Return the Plan's limit: a finite source sets none."""
        return self._require_open().max_in_flight

    def statistics(self) -> FiniteCounts:
        """Return the counts so far."""
        return replace(self._require_open().counts)

    def notes(self) -> dict[str, int]:
        """Return how many jobs were put aside, if any were: `source.postponed`."""
        num_postponed = self._require_open().counts.postponed
        return {"source.postponed": num_postponed} if num_postponed else {}

    @property
    def num_in_flight(self) -> int:
        """Jobs received and not settled."""
        return self._require_open().num_in_flight

    def close(self) -> None:
        """End it: nothing more is given out. Repeating it does nothing."""
        if self._open is not None:
            self._open.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the state of a run behind when pickled."""
        return {**self.__dict__, "_open": None, "_work_list": None}

    def _require_open(self) -> _OpenFinite:
        if self._open is None:
            raise RuntimeError("open the source before using it")
        return self._open


def around(read: Callable[[], Iterator[Entry | None]]) -> Iterator[Entry | None]:
    """Return entries that can be read again and again, without an end unless there are none."""
    for turn in itertools.count(1):
        num_read = 0
        for entry in read():
            num_read += entry is not None
            yield entry and entry.again(turn)
        if not num_read:
            return


def entries_to_keep(source: FiniteSource) -> Iterator[Entry]:
    """Return the entries of a source for who keeps them: frames, which only decoding brings, end once they are 1 GB."""
    num_bytes = 0
    for entry in source.entries():
        yield entry
        if not source.lists_ahead and isinstance(entry.payload, np.ndarray):
            num_bytes += entry.payload.nbytes
            if num_bytes >= MOST_KEPT_BYTES:
                return


class _OpenFinite:
    """The part of a FiniteSource that exists between open and close."""

    def __init__(
        self,
        entries: Iterator[Entry | None],
        max_receives: int,
        max_in_flight: int | None,
        work_list: WorkList | None = None,
    ) -> None:
        self.counts = FiniteCounts()
        self.num_in_flight = 0
        self.max_in_flight = max_in_flight
        self.most_waiting: int | None = None
        """While this many jobs wait to be tried again nothing new is given out; None: any number may wait."""
        self._entries: Iterator[Entry | None] | None = entries
        self._max_receives = max_receives
        self._work_list = work_list
        self._num_alone = work_list.num_alone if work_list else 0
        """Jobs still to be given out alone; the last one counts until it has ended."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # entered by its lock, which is C
        self._again: list[tuple[float, int, int, Entry]] = []
        """Heap of retries: when (time.monotonic()), position in the source, number of the attempt."""
        self._aside: deque[tuple[int, int, Entry]] = deque()
        """Jobs that were put aside: position in the source, number of the attempt."""
        self._has_come_back = False
        self._is_reading = self._is_closed = False
        self.was_exhausted = False
        """Every job had been given out when it was closed."""

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        give_up_at = time.monotonic() + wait_seconds
        with self._lock:
            while True:
                jobs = self._take(limit)
                if jobs:
                    return jobs
                if self._entries is None and not self.num_in_flight and not self._again and not self._aside:
                    return None
                now = time.monotonic()
                if now >= give_up_at:
                    return []
                wake_at = min(give_up_at, self._again[0][0]) if self._again else give_up_at
                self._changed.wait(max(0.0, wake_at - now))

    def notify(self) -> None:
        """Wake who waits for a job: the next entry may be there."""
        with self._lock:
            self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self.was_exhausted, self._is_closed = self.is_exhausted, True
            self._entries = None
            self._again.clear()
            self._aside.clear()
            self._changed.notify_all()

    @property
    def is_exhausted(self) -> bool:
        # No other job runs beside it, so a delivery that waits for more results would wait forever.
        is_alone = bool(self._num_alone and self.num_in_flight)
        return (self._entries is None or is_alone) and not self._again and not self._aside

    def _take(self, limit: int) -> list[Job]:
        jobs: list[Job] = []
        if self._num_alone:
            limit = 0 if self.num_in_flight else min(limit, self._next_alone())
        until = time.monotonic() + _SLOW_SECONDS
        while len(jobs) < limit:
            if self._again and self._again[0][0] <= time.monotonic():
                _, place, attempt, entry = heapq.heappop(self._again)
            elif (fresh := self._next_entry()) is not None:
                place, attempt, entry = self.counts.received, 1, fresh
                self.counts.received += 1
            elif self._aside:
                self._has_come_back = True
                place, attempt, entry = self._aside.popleft()
            else:
                break
            self.num_in_flight += 1
            jobs.append(self._job(place, attempt, entry))
            if time.monotonic() >= until:  # what is there is not held back for what comes slowly
                break
        return jobs

    def _next_alone(self) -> int:
        """Return how many may be given out now that nothing is in flight: one, or any number once all of those are through."""
        if self._again:  # it has another try
            return int(self._again[0][0] <= time.monotonic())
        self._num_alone = 0 if self._work_list is None else max(0, self._work_list.num_alone - self.counts.received)
        if self._work_list is not None:
            self._work_list.given_alone(self._work_list.entries[self.counts.received].id if self._num_alone else None)
        return 1 if self._num_alone else 2**31

    def _next_entry(self) -> Entry | None:
        if self._entries is None or (self.most_waiting is not None and len(self._again) >= self.most_waiting):
            return None
        if self._is_reading:  # another thread, which gives out what it gets
            return None
        entries, self._is_reading = self._entries, True
        self._lock.release()  # an iterator that waits for its next one would hold up the jobs that end
        try:
            entry = next(entries)
        except StopIteration:
            entry = self._entries = None
        finally:
            self._lock.acquire()
            self._is_reading = False
        return None if self._entries is None else entry  # what came after it was closed is no job of this run

    def _job(self, place: int, attempt: int, entry: Entry) -> Job:
        def settle(job: Job, outcome: Outcome) -> None:
            self._settle(place, attempt, entry, outcome)

        attributes = dict(entry.attributes)  # stages may add to it
        job = Job(
            entry.id,
            entry.payload,
            attributes=attributes,
            stream=entry.stream,
            sequence=place if entry.sequence is None else entry.sequence,
            attempt=attempt,
            max_attempts=self._max_receives,
            settle=settle,
        )
        # Only addresses wait on others, and they cost little memory.
        if entry.refused:
            job.verdict = Outcome(OutcomeKind.REJECTED, entry.refused)
        is_light = isinstance(entry.payload, str) and len(self._aside) < MOST_ASIDE
        job.is_leftover = self._has_come_back
        job.may_wait = is_light and not (self._num_alone or self._has_come_back)
        return job

    def _settle(self, place: int, attempt: int, entry: Entry, outcome: Outcome) -> None:
        counts = self.counts
        with self._lock:
            has_tries = outcome.kind is OutcomeKind.RETRY and (outcome.spared or attempt < self._max_receives)
            if self._work_list is not None and not has_tries and outcome.kind is not OutcomeKind.RETURNED:
                self._work_list.settled(entry.id, outcome)
            self.num_in_flight -= 1
            if outcome.kind is OutcomeKind.DELIVERED:
                counts.delivered += 1
            elif outcome.kind is OutcomeKind.REJECTED:
                counts.rejected += 1
            elif outcome.is_put_aside:
                counts.returned += 1
                counts.postponed += 1
                self._aside.append((place, attempt, entry))
            elif outcome.kind is OutcomeKind.RETURNED:
                counts.returned += 1
                heapq.heappush(self._again, (time.monotonic() + outcome.delay_seconds, place, attempt, entry))
            elif has_tries and outcome.spared:
                counts.retried += 1
                counts.postponed += 1
                self._aside.append((place, attempt, entry))
            elif has_tries:
                counts.retried += 1
                due = time.monotonic() + outcome.delay_seconds
                heapq.heappush(self._again, (due, place, attempt + 1, entry))
            else:
                counts.dead_lettered += 1
            # Who waits for a job waits for one that comes back, or for the last one to end.
            if not self.num_in_flight or outcome.kind in _COMES_BACK:
                self._changed.notify_all()
