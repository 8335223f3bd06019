"""Runs one pipeline over a fixed number of items, opened anew, and measures its steady part.

How this works: the items are read from the source once and given to every block in the same order, around again if there are
too few. A source that works for each item, such as one that decodes video, is read again by every block, so that its work is
measured too. The delivery is replaced by one that notes when a result reaches it and what CPU time had been used by then; it
keeps nothing, unless the user wants the results delivered, and then it hands them on.

The first item goes through alone, with loading and warming up, and does not count. Filling and draining do not either: rates
are taken between the middle of the first half of the results and the middle of the second half. A mean over each half, instead
of the first and the last result, makes the figure hardly depend on one straggler at the end: a last result that is late by d
shifts the seconds per item by 4 d / n^2, not by d / n. Results may come in bunches (batches, workers in step): one in the
middle is in neither half. Cut in two, it would make the rate up to 6 % too high where there are four or five of them, and only
on the side that has them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from headrace.base.calls import Call
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.metering import process_cpu_seconds
from headrace.base.observer import Observer
from headrace.base.page_cache import evict_all, files_of, residency, state_of
from headrace.base.plan import Plan
from headrace.base.protocols import CarriesCalls, Delivery, WorksForJobs
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.compare.neighbours import NeighbourWatch
from headrace.pipeline.definition import Pipeline, carries_calls
from headrace.pipeline.execute import Measuring, Result, run
from headrace.sources.finite import Entry, FiniteSource, entries_to_keep

#: Fewest results from which a rate is taken: the median latency needs 11 (`base.statistics.samples_needed`).
FEWEST_READINGS = 11
#: Fewest items of a block: the first goes ahead and does not count.
FEWEST_ITEMS = FEWEST_READINGS + 1
_NO_ITEMS = "the source has no items to compare on; name another with --source"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what runs say to people to themselves, where they do not ask for it: the same lines for each of some dozen blocks.

    Warnings are in what a block returns, and so is how many jobs failed, and why the first did.
    """
    logger = logging.getLogger("headrace")
    level = logger.level
    if logger.getEffectiveLevel() >= logging.WARNING:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def fewest_items(plan: Plan) -> int:
    """Return how many items a block needs for several rounds of each stage's workers, and several of its batches."""
    together = [
        (stage.workers or 1) * (stage.batch or 1)
        for name, stage in plan.stages.items()
        if name != "deliver" and stage.executor != "inline"
    ]
    return max(FEWEST_ITEMS, 4 * max(together, default=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One of the two that are compared."""

    name: str
    """As the user wrote it."""
    pipeline: Pipeline
    plan: Plan

    @property
    def pipeline_name(self) -> str:
        """How the pipeline is called."""
        return self.pipeline.name

    def measure(
        self, items: SameItems, num_items: int, *, deliver: bool = False, observers: Sequence[Observer] = ()
    ) -> Block:
        """Run it once over a number of items and return what that measured; see `measure_block`."""
        return measure_block(self, items, num_items, deliver=deliver, observers=observers)


class Measurable(Protocol):
    """What can be compared: a `Contender`, or one of another process."""

    @property
    def name(self) -> str:
        """As the user wrote it."""
        ...

    @property
    def pipeline_name(self) -> str:
        """How the pipeline is called."""
        ...

    def measure(
        self, items: SameItems, num_items: int, *, deliver: bool = False, observers: Sequence[Observer] = ()
    ) -> Block:
        """Run it once over a number of items and return what that measured."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one run over a fixed number of items measured; None where too few results came to tell."""

    throughput: float | None
    """Results per second in the steady part."""
    latency_p50: float | None
    """Seconds from a job's arrival to its being settled, median of all."""
    cpu_per_item: float | None
    """CPU seconds per result in the steady part, of this process and its children."""
    delivered: int
    failed: int
    """Rejected or dead-lettered."""
    first_failure: str | None
    """Why the first of them failed."""
    seconds: float
    """Wall time of the whole block, loading included."""
    busy_seconds: Mapping[str, float]
    """{stage: service summed over its items; a batch counts once}."""
    passages: Mapping[str, int]
    """{stage: items that went through}."""
    plan: Plan
    """Resolved."""
    warnings: tuple[str, ...]
    is_emulated: bool
    interrupted: bool
    taken_cores: float | None = None
    """Cores that other programs and the hypervisor had meanwhile; None where it was too short or the kernel does not tell."""
    in_memory: float | None = None
    """Share of the input files' pages that were in memory when it began; None: not known, or no files."""


def read_items(pipeline: Pipeline) -> FiniteSource:
    """Return the pipeline's source if it can be read again for every block.

    Raises:
        SettingsError: If it cannot, as a queue.
    """
    source = pipeline.source
    if not isinstance(source, FiniteSource):
        raise SettingsError(
            f"{pipeline.name} takes its jobs from a {type(source).__name__}, which cannot be read twice, and every block needs "
            "the same items; name a folder, or a .txt of URLs or paths, with --source (of live streams, headrace clip keeps a "
            "stretch)"
        )
    return source


class SameItems(FiniteSource):
    """The same items in the same order for every block, from the start again when there are too few.

    Args:
        source: Where they come from; read once, as far as a block needs.
        cold: Let the kernel forget each file before it is given out.
        own: Where sources work for each item, let each pipeline take the items of its own; else all take those of `source`.
    """

    def __init__(self, source: FiniteSource, *, cold: bool = False, own: bool = False) -> None:
        super().__init__(max_receives=1)
        self._unread: Iterator[Entry] | None = entries_to_keep(source)
        self._read: list[Entry] = []
        self.num_items = 0
        self._cold = cold
        self._source, self._own = source, own
        self._ids: list[str] = []

    @property
    def num_distinct(self) -> int:
        """How many different items the blocks used so far."""
        return len(self._ids) or min(self.num_items, len(self._read))

    @property
    def ids(self) -> list[str]:
        """Ids of the items that were read, in order."""
        return self._ids or [entry.id for entry in self._read]

    def source_for(self, pipeline: Pipeline) -> tuple[FiniteSource, int | None]:
        """Return where a pipeline's block takes its items from, and how many of them at most (None: as many as it has).

        What a source does for each item is part of what is measured: such a source is read again in each block.
        """
        if not isinstance(self._source, WorksForJobs):
            return self, None
        own = pipeline.source
        takes_own = self._own and isinstance(own, FiniteSource) and isinstance(own, WorksForJobs)
        return cast(FiniteSource, own) if takes_own else self._source, self.num_items

    def note(self, ids: list[str], *, may_be_none: bool = False) -> None:
        """Note which items a block took of a source that it read itself.

        Raises:
            SettingsError: If they are others than those of the blocks before, or none although there should be some.
        """
        if not (ids or may_be_none):
            raise SettingsError(_NO_ITEMS)
        # Once each: what was put aside, or is tried again because a Plan says so, comes twice.
        fewer, more = sorted((self._ids, list(dict.fromkeys(ids))), key=len)
        if others := set(fewer) - set(more):
            raise SettingsError(
                f"its source gives other items than the other side's, such as {min(others)!r}; give both the same with --source"
            )
        self._ids = more

    @property
    def read(self) -> Sequence[Entry]:
        """The items that were read, in order."""
        return self._read

    def prepare(self) -> float | None:
        """Make their files cold if they are to be; return how much of them lies in memory, None: not known, or no files."""
        if self._cold:
            self._read_on()
        files = files_of(entry.payload for entry in self._read[: self.num_items])
        if not self._cold:
            return residency(files).share
        if not files:
            raise SettingsError(
                "--cold: these items are no files of this machine, so nothing can be made to leave its page cache; name a "
                "folder or shards with --source"
            )
        evict_all(files)
        found = residency(files)
        if state_of(found.share) != "cold":
            why = found.reason or f"{found.share:.0%} of their pages are still there"
            raise SettingsError(f"--cold: the files could not be made to leave the page cache: {why}")
        return found.share

    def _read_on(self) -> None:
        if self._unread is not None and self.num_items > len(self._read):
            self._read.extend(itertools.islice(self._unread, self.num_items - len(self._read)))

    def entries(self) -> Iterator[Entry]:
        """Return `num_items` of them."""
        self._read_on()
        if not self._read:
            raise SettingsError(_NO_ITEMS)
        around, rest = divmod(self.num_items, len(self._read))
        for turn in range(around + bool(rest)):
            again = self._read[: rest if turn == around else None]
            if self._cold and turn:  # the turn before brought them into memory
                evict_all(files_of(entry.payload for entry in again))
            for entry in again:
                yield entry if turn == 0 else Entry(f"{entry.id}#{turn + 1}", entry.payload, entry.attributes)


@dataclass(slots=True)
class Noted:
    """A delivery that notes when results reach it, and hands them on to another, or drops them.

    Attributes:
        at_seconds: When each result came, on the monotonic clock.
        cpu_seconds: CPU time used by then.
    """

    inner: Delivery | None
    cpu: CpuClock
    at_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    flush_items: int = 1
    flush_seconds: float = 0.0
    default_workers: int = 1

    def __post_init__(self) -> None:
        """Behave as the delivery it stands for."""
        if self.inner is not None:
            self.flush_items, self.flush_seconds = self.inner.flush_items, self.inner.flush_seconds
            self.default_workers = self.inner.default_workers

    def open(self, context: Any) -> None:
        """Make the other ready."""
        if self.inner is not None:
            self.inner.open(context)

    def deliver(self, job: Job, result: Any) -> bool:
        """Hand one result on, and note it."""
        durable = True if self.inner is None else self.inner.deliver(job, result)
        self.at_seconds.append(time.monotonic())
        self.cpu_seconds.append(self.cpu.seconds())
        return durable

    def flush(self) -> None:
        """Flush the other."""
        if self.inner is not None:
            self.inner.flush()

    def close(self) -> None:
        """Close the other."""
        if self.inner is not None:
            self.inner.close()


class CarriedNoted(Noted):
    """The same in the place of a delivery whose calls one thread carries, so that its stage runs as the user's Plan says."""

    __slots__ = ()

    def delivering(self, job: Job, result: Any) -> Call[bool]:
        """Return a call that hands one result on, and notes it."""
        durable = True if self.inner is None else (yield from cast(CarriesCalls, self.inner).delivering(job, result))
        self.at_seconds.append(time.monotonic())
        self.cpu_seconds.append(self.cpu.seconds())
        return durable


def note_deliveries(delivery: Delivery, *, deliver: bool) -> Noted:
    """Return what notes when results reach it, and hands them on or drops them.

    Args:
        delivery: The user's, in whose place it is.
        deliver: Hand them on.
    """
    kind = CarriedNoted if carries_calls(delivery) else Noted
    return kind(delivery if deliver else None, CpuClock())


class FirstFailure(Observer):
    """Keeps why the first job failed.

    Attributes:
        reason: None if none did.
    """

    def __init__(self) -> None:
        self.reason: str | None = None

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Keep it."""
        if self.reason is None and outcome.kind in (OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED):
            self.reason = outcome.reason


class Received(Observer):
    """Keeps the ids of the jobs that came.

    Attributes:
        ids: In the order in which they came.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Keep them."""
        self.ids += [job.id for job in jobs]


class CpuClock:
    """CPU time of this process, of its children that ended, and of those that run.

    Children are looked up once, at the first reading: workers in processes are there before the first result. Grandchildren
    count when they and their parents have ended.
    """

    def __init__(self) -> None:
        self._children: list[int] | None = None

    def seconds(self) -> float:
        """Return CPU seconds so far; only differences mean anything."""
        if self._children is None:
            self._children = _children(os.getpid())
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        # One that has ended is in the children's account.
        running = sum(process_cpu_seconds(child) or 0.0 for child in self._children)
        return time.process_time() + ended.ru_utime + ended.ru_stime + running


def _children(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    # The name before may hold spaces and parentheses.
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(name))
    return found


def measure_block(
    contender: Contender, items: SameItems, num_items: int, *, deliver: bool = False, observers: Sequence[Observer] = ()
) -> Block:
    """Run a contender once over a number of items and return what it measured.

    Args:
        contender: What to run; opened anew.
        items: The items of all blocks.
        num_items: How many, >= 1.
        deliver: Hand results to the pipeline's own delivery instead of dropping them.
        observers: Watch the run.

    Raises:
        HeadraceError: What running raises, with the contender's name.
    """
    noted = note_deliveries(contender.pipeline.delivery, deliver=deliver)
    failure = FirstFailure()
    items.num_items = num_items
    source, limit = items.source_for(contender.pipeline)
    received = Received()
    gc.collect()  # what the block before left behind is not this one's
    started = time.monotonic()
    watch = NeighbourWatch(CpuClock().seconds)
    try:
        in_memory = items.prepare()
        # A failed job is not offered again: it would come seconds later, and the block would last for its sake alone.
        with source.trying_once():
            result = run(
                replace_parts(contender.pipeline, source, noted),
                contender.plan,
                limit=limit,
                observers=[failure, *([] if limit is None else [received]), *observers],
                measuring=Measuring(first_alone=True, brakes=False),
            )
        if limit is not None:
            items.note(received.ids, may_be_none=result.interrupted)
    except HeadraceError as error:
        kind = SettingsError if isinstance(error, SettingsError) else HeadraceError
        raise kind(f"{contender.name}: {error}") from error
    block = _block(result, noted, failure, time.monotonic() - started)
    warnings = (*block.warnings, *_too_few(received, limit, result))
    return replace(block, taken_cores=watch.taken_cores(), in_memory=in_memory, warnings=warnings)


def _too_few(received: Received, limit: int | None, result: Result) -> list[str]:
    """Return what is to be said of a source that was read to its end and had fewer items than a block wants."""
    num_items = len(set(received.ids))
    if limit is None or result.interrupted or num_items >= limit:
        return []
    return [f"the source has {num_items:,} items, and a block was to have {limit:,}: blocks are shorter than they say"]


@contextlib.contextmanager
def as_in_blocks(source: FiniteSource, limit: int | None) -> Iterator[None]:
    """Let a source give a profile what it gives blocks: each job once; from the start again if it ends before a limit."""
    with source.trying_once(), contextlib.nullcontext() if limit is None else source.going_around():
        yield


def replace_parts(pipeline: Pipeline, source: FiniteSource, delivery: Delivery | None = None) -> Pipeline:
    """Return the pipeline with another source and delivery; the stages are the same objects.

    Args:
        pipeline: What is done.
        source: Where its items come from.
        delivery: Where its results go; None: they are dropped.
    """
    other = pipeline.replace_delivery(delivery or note_deliveries(pipeline.delivery, deliver=False))
    other.source = source
    return other


def _block(result: Result, noted: Noted, failure: FirstFailure, seconds: float) -> Block:
    counters, document = result.counters, result.summary.as_dict()
    each_seconds = per_item(noted.at_seconds[1:])
    return Block(
        throughput=1 / each_seconds if each_seconds else None,
        latency_p50=document["latency_seconds"]["p50"],
        cpu_per_item=per_item(noted.cpu_seconds[1:]),
        delivered=counters.delivered,
        failed=counters.rejected + counters.dead_lettered,
        first_failure=failure.reason,
        seconds=seconds,
        busy_seconds={stage["name"]: stage["busy_seconds"] for stage in document["stages"]},
        passages={stage["name"]: stage["items"] for stage in document["stages"]},
        plan=result.plan,
        warnings=tuple(result.warnings),
        is_emulated=result.is_emulated,
        interrupted=result.interrupted,
    )


def warnings_of(blocks: Sequence[Block], name: str = "") -> list[str]:
    """Return what is to be said of some blocks: how many jobs failed, and what the runs warned of.

    Args:
        blocks: Of one contender, or of all.
        name: Of whom, for people.
    """
    failed = sum(block.failed for block in blocks)
    reason = next((block.first_failure for block in blocks if block.first_failure), "")
    of = f"{name}: " if name else ""
    found = [f"{of}{failed:,} jobs failed; the first: {reason}"] if failed else []
    return found + list(dict.fromkeys(warning for block in blocks for warning in block.warnings))


def per_item(readings: Sequence[float]) -> float | None:
    """Return how much a growing reading grew per item: between the means of the first and of the second half.

    Args:
        readings: One for each item, any order; a clock's, for instance.

    Returns:
        None with fewer than `FEWEST_READINGS`, or if it did not grow.
    """
    n = len(readings)
    if n < FEWEST_READINGS:
        return None
    ordered = sorted(readings)
    first, last = _halves(ordered)
    growth = sum(ordered[n - last :]) / last - sum(ordered[:first]) / first
    return growth / (n - (first + last) / 2) if growth > 0 else None


def _halves(ordered: Sequence[float]) -> tuple[int, int]:
    """Return how many readings the first and the last half have, without the bunch in the middle that both would share."""
    n, half = len(ordered), len(ordered) // 2
    quarter, three_quarters = ordered[n // 4], ordered[3 * n // 4]
    # From the middle alone: a straggler at the end is no measure of what lies close together.
    close = (three_quarters - quarter) / half / 4
    first = last = half
    if n % 2 or ordered[half] - ordered[half - 1] < close:
        while first > 0 and ordered[first] - ordered[first - 1] < close:
            first -= 1
        while last > 0 and ordered[n - last] - ordered[n - last - 1] < close:
            last -= 1
    return (first, last) if first and last else (half, half)
