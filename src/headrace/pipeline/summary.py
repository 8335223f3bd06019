"""What a run looks like in numbers, while it goes on and when it is over; kept in bounded memory.

How this works: the hooks, called by the threads that do the work, only append to deques. The bookkeeper brings what workers
did (`read_notes`) and calls `digest` every few tens of milliseconds; it works in slices until its budget of time is spent and
leaves the rest for the next call, so it never keeps the GIL for long. Counts and sums are exact; percentiles are of a uniform
random sample of at most `RESERVOIR_SIZE` values for each stage and quantity. One lock orders `digest` and those who read (live
view, `as_dict`).

`as_dict` is the document that `headrace run --json` prints, schema `headrace.run/1` (the command adds Plan and settings):

    schema                  "headrace.run/1"
    complete                whether everything that was observed is counted
    elapsed_seconds         from the first job received to the last thing observed
    counters                received, delivered, rejected, dead_lettered, retried, returned, lost, notes
    throughput_per_second   jobs delivered / elapsed_seconds; null with fewer than two
    latency_seconds         distribution; arrival of a job to its being settled as delivered
    stages                  list in the order of first work, each:
      name, workers         workers is null where nobody said how many there are
      items, failed         passages through the stage; those of them that did not end ok
      service_seconds       distribution; for a batching stage an item's service is its batch's
      queue_wait_seconds    distribution
      busy_seconds          service summed over workers; a batch counts once
      utilization_ratio     busy time over workers x elapsed; null without workers
      blocked_ratio         the same for the time in which workers, their work done, waited for room in the next queue
      throughput_per_second items / elapsed_seconds of the run
      batches               null, or: count, mean_size, release_reasons {reason: number}
    reasons                 why deliveries of jobs failed, the most frequent first, each:
      code                  what the reason begins with, such as ssrf.port; without such a code the stage's name, or "other"
      count                 jobs that were rejected or dead-lettered for it
      retried, returned     deliveries whose jobs are tried again, or were given back without its counting against them
      example, first_item   the rest of the first such reason, cut, and the job it was of
      origin                null, or where in the user's code: error (type), file, line, function, traceback

A distribution has mean, p50, p90, p99, num_samples (in the percentiles) and num_needed {percentile: samples}; a percentile
of too small a sample is null. Version 1: 2026-11, first.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.clock import Clock, SystemClock
from headrace.base.formatting import align_columns
from headrace.base.observer import Observer
from headrace.base.records import BatchFormed, Counters, Job, Outcome, OutcomeKind, QueueStatistics
from headrace.base.reservoir import Reservoir
from headrace.base.statistics import percentile, samples_needed, utilization
from headrace.base.units import format_duration, format_rate
from headrace.pipeline.reasons import Failure, Reasons, failure_of, show_reasons
from headrace.pipeline.stage_totals import StageTotals, Window
from headrace.pipeline.told import Ended, Listener
from headrace.pipeline.work_notes import WorkNote

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "headrace.run/1"

#: Values kept for each stage and quantity: half a megabyte.
RESERVOIR_SIZE = 65_536

#: Jobs digested before the clock is looked at again, about a quarter of a millisecond, and passages that are offered to the
#: samples at once.
SLICE_SIZE = 256

#: Notes of the hooks that may wait beyond the time given to a digest. With more of them a busy machine would leave more behind
#: at each turn than it digests, and they are memory.
MOST_NOTES = 5_000
#: So much longer a digest takes while that many wait.
_CATCH_UP_SECONDS = 0.05

_PERCENTILES = (50, 90, 99)
# Two tables, so that each fits a terminal of 80 columns.
_WORK = ("stage", "workers", "items", "failed", "rate", "busy", "blocked", "batch")
_TIMES = ("stage", "service: p50", "p90", "p99", "mean", "wait: p50", "p90")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands at one moment; cheap to make."""

    received: int
    delivered: int
    rejected: int
    dead_lettered: int
    retried: int
    returned: int
    elapsed_seconds: float
    """From the first job received until now; 0 before it."""
    busy_seconds: Mapping[str, float]
    """By stage, since the start; in the order of first work."""
    passages: Mapping[str, int]
    """By stage: items that went through it."""
    throughput: float | None
    """Jobs delivered per second, from the first received to the last thing observed; None with fewer than two."""

    @property
    def finished(self) -> int:
        """Jobs that need no more work."""
        return self.delivered + self.rejected + self.dead_lettered


@dataclass(frozen=True, slots=True)
class StageCount:
    """What a stage has done so far, exact."""

    name: str
    items: int
    failed: int
    busy_seconds: float
    blocked_seconds: float


class Summary(Observer):
    """Counts and times of one run.

    Attributes:
        workers: {stage: number of workers}, for utilization; whoever starts workers fills it in, and changes it with them.
        num_passages: Items that went through a stage so far, summed over the stages.
    """

    def __init__(
        self,
        workers: Mapping[str, int] | None = None,
        *,
        counters: Counters | None = None,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        """Make an empty summary.

        Args:
            workers: {stage: number of workers} as far as known.
            counters: The pipeline's own, shown instead of those counted from the hooks: it knows of lost deliveries and
                of what stages counted.
            clock: The run's clock.
            seed: Of the samples, so that the same run gives the same percentiles.
        """
        self.workers = dict(workers or {})
        self._pipeline_counters = counters
        self._counted = Counters()
        clock = clock or SystemClock()
        self._now = clock.now_ns
        self._seed = seed
        self.num_passages = 0
        self.done_before = 0
        self.left: int | None = None
        self.ask_source: Callable[[], QueueStatistics] | None = None  # what waits in a queue; it may take its time
        self._lock = threading.Lock()
        self._received: deque[tuple[int, Sequence[Job]]] = deque()
        self._settled: deque[Ended] = deque()
        self._formed: deque[BatchFormed] = deque()
        self._arrivals: dict[tuple[str, int], int] = {}
        self._reasons = Reasons()
        self._latency = Reservoir(RESERVOIR_SIZE, seed)
        self._stages: dict[str, StageTotals] = {}
        self._groups: dict[str, list[StageTotals]] = {}
        """The stages of each station, by the name of the first."""
        self._first_ns: int | None = None
        self._last_ns = 0
        self._listener: Listener | None = None

    def tell(self, listener: Listener | None) -> None:
        """Tell a listener what is counted, as it is; times when some hundred of a stage are, and with `stage_counts`."""
        with self._lock:
            self._listener = listener
            for stage in self._stages.values():
                stage.tell = None if listener is None else listener.take_times

    def stage_counts(self) -> list[StageCount]:
        """Return what each stage has done so far."""
        with self._lock:
            return [
                StageCount(stage.name, stage.items, stage.failed, stage.busy_ns / 1e9, stage.blocked_seconds())
                for stage in self._in_order()
            ]

    def begins_at(self, done_before: int, left: int | None) -> None:
        """Note how many entries were done by earlier starts of this run, and how many are left (None: unknown)."""
        self.done_before, self.left = done_before, left

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Note the arrival of jobs."""
        self._received.append((self._now(), jobs))

    def read_notes(self, notes: Sequence[WorkNote]) -> None:
        """Count passages through stages; called by one thread."""
        with self._lock:
            for note in notes:
                self._read_note(note)

    def batch_formed(self, batch: BatchFormed) -> None:
        """Note a batch."""
        self._formed.append(batch)

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note how a delivery of a job ended."""
        # Not the job itself: its payload may be large.
        failure = None if outcome.kind is OutcomeKind.DELIVERED else failure_of(job, outcome)
        self._settled.append((self._now(), job.id, job.attempt, outcome.kind, failure, job.task, outcome.undelivered))

    def digest(self, budget_seconds: float | None = 0.001) -> None:
        """Work through what the hooks noted.

        Args:
            budget_seconds: Stop after about this CPU time (at least one slice is done), or a little later where too much waits;
                the rest waits for the next call. None goes on until nothing waits, however long it takes.
        """
        # Of this thread alone: on a busy machine wall time would leave more behind at each turn than comes.
        now = time.thread_time()
        end = math.inf if budget_seconds is None else now + budget_seconds
        with self._lock:
            while self._waiting():
                self._digest_slice()
                now = time.thread_time()
                if now >= end and (now >= end + _CATCH_UP_SECONDS or self._waiting() <= MOST_NOTES):
                    break

    def backlog(self) -> int:
        """Return how many notes of the hooks wait for `digest`."""
        return self._waiting()

    def progress(self) -> Progress:
        """Return where the run stands, as far as digested."""
        with self._lock:
            counted = self._counted
            return Progress(
                counted.received,
                counted.delivered,
                counted.rejected,
                counted.dead_lettered,
                counted.retried,
                counted.returned,
                (self._now() - self._first_ns) / 1e9 if self._first_ns is not None else 0.0,
                {stage.name: stage.busy_ns / 1e9 for stage in self._in_order()},
                {stage.name: stage.items for stage in self._in_order()},
                self._throughput(),
            )

    def time_inside(self) -> tuple[int, float]:
        """Return how many jobs were delivered, and for how many seconds these were here in all, as far as digested."""
        with self._lock:
            return self._latency.count, self._latency.total / 1e9

    def counters(self) -> Counters:
        """Return a copy of the pipeline's counters where it gave them, else of those counted here."""
        source = self._pipeline_counters or self._counted
        return dataclasses.replace(source, notes=dict(source.notes))

    def efficiency_window(self, stage: str) -> Window | None:
        """Return what a stage did between the first and the last start of its work; None with a single start or none.

        For a device stage these are the starts of its first and its last batch.
        """
        with self._lock:
            found = self._stages.get(stage)
            return found.window() if found else None

    def efficiency(self, stage: str, limit_per_second: float) -> float | None:
        """Return a stage's throughput over the most its device can do at the batch size used; None without a window.

        Args:
            stage: The device stage.
            limit_per_second: Items per second of the device when it never waits, > 0.
        """
        window = self.efficiency_window(stage)
        return window.throughput / limit_per_second if window else None

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as the JSON document that this module describes; digests everything first."""
        self.digest(budget_seconds=None)
        with self._lock:
            elapsed = self._elapsed_seconds()
            latency = _Values.of(self._latency)
            rows = [
                (self._stage_row(stage, elapsed), _Values.of(stage.service), _Values.of(stage.queue_wait))
                for stage in self._in_order()
            ]
            document = {
                "schema": SCHEMA,
                "complete": not self._waiting(),
                "elapsed_seconds": elapsed,
                "counters": dataclasses.asdict(self.counters()),
                "throughput_per_second": self._throughput(),
                "reasons": self._reasons.as_list(),
            }
        # Percentiles without the lock: they take milliseconds, and the hooks' notes wait meanwhile.
        document["latency_seconds"] = latency.distribution()
        document["stages"] = [
            row | {"service_seconds": service.distribution(), "queue_wait_seconds": wait.distribution()}
            for row, service, wait in rows
        ]
        return document

    def as_text(self) -> str:
        """Return the summary for people, as plain text."""
        parts = _readable(self.as_dict())
        return (
            "\n\n".join("\n".join(align_columns(part) if isinstance(part[0], tuple) else part) for part in parts) + "\n"
        )

    def as_table(self) -> RenderableType:
        """Return the summary for people, as something that a rich console prints."""
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = []
        for part in _readable(self.as_dict()):
            is_table = isinstance(part[0], tuple)
            lines = align_columns(part) if is_table else part
            text = Text("\n".join(["", *lines] if parts else lines), no_wrap=is_table)
            if is_table:
                text.stylize("bold", 1, len(lines[0]) + 1)
            parts.append(text)
        return Group(*parts)

    def _waiting(self) -> int:
        return len(self._received) + len(self._settled) + len(self._formed)

    def _digest_slice(self) -> None:
        """Digest at most SLICE_SIZE notes of each kind."""
        # A job is noted as received before it is noted as settled. So what is settled now was received before, and all
        # that was received before now is taken first.
        num_settled = min(len(self._settled), SLICE_SIZE)
        if num_settled or self._received:
            received = [self._received.popleft() for _ in range(len(self._received))]
            for now, jobs in received:
                self._digest_received(now, jobs)
            if received and self._listener is not None:
                num_again = sum(job.attempt > 1 for _, jobs in received for job in jobs)
                self._listener.take_received(sum(len(jobs) for _, jobs in received), num_again)
            ended = [self._settled.popleft() for _ in range(num_settled)]
            latencies = [self._digest_settled(*one[:5]) for one in ended]
            self._latency.extend([latency for latency in latencies if latency is not None])
            if ended and self._listener is not None:
                self._listener.take_ended(ended, latencies)
        formed = [self._formed.popleft() for _ in range(min(len(self._formed), SLICE_SIZE))]
        for batch in formed:
            self._digest_batch(batch)
        if formed and self._listener is not None:
            self._listener.take_batches(formed)

    def _digest_received(self, now: int, jobs: Sequence[Job]) -> None:
        self._counted.received += len(jobs)
        for job in jobs:
            self._arrivals[job.id, job.attempt] = now
        self._saw(now, now)

    def _digest_settled(
        self, now: int, job_id: str, attempt: int, kind: OutcomeKind, failure: Failure | None
    ) -> int | None:
        """Count an outcome, and return the latency in ns of a job that was delivered."""
        counted = self._counted
        if failure is not None:
            self._reasons.add(failure)
        if kind is OutcomeKind.DELIVERED:
            counted.delivered += 1
        elif kind is OutcomeKind.REJECTED:
            counted.rejected += 1
        elif kind is OutcomeKind.DEAD_LETTERED:
            counted.dead_lettered += 1
        elif kind is OutcomeKind.RETRY:
            counted.retried += 1
        else:
            counted.returned += 1
        arrived = self._arrivals.pop((job_id, attempt), None)
        self._saw(now, now)
        return now - arrived if kind is OutcomeKind.DELIVERED and arrived is not None else None

    def _digest_batch(self, batch: BatchFormed) -> None:
        stage = self._stage(batch.stage)
        stage.num_batches += 1
        stage.num_batched += batch.size
        reason = str(batch.reason)
        stage.release_reasons[reason] = stage.release_reasons.get(reason, 0) + 1

    def _read_note(self, note: WorkNote) -> None:
        dequeued, arrivals, passed, lefts = note.dequeued, note.arrivals, note.timings, note.left
        stages = self._groups.get(note.stages[0].name) or self._group(note)
        num_passages = 0
        for (_, arrived, _), timings in zip(arrivals, passed, strict=True):
            wait_ns = dequeued - arrived
            for timing in timings:
                stage, started, ended = stages[timing.stage], timing.started, timing.ended
                stage.starts.append(started)
                stage.ends.append(ended)
                stage.waits.append(wait_ns)
                wait_ns = 0  # an inline stage has no queue
                if timing.batch_size is not None:
                    stage.count_share(ended - started, timing.batch_size)
                if timing.outcome != "ok":
                    stage.failed += 1
            num_passages += len(timings)
        self.num_passages += num_passages
        left = lefts[0] if len(lefts) == 1 else max(lefts)
        if left > self._last_ns:
            self._last_ns = left
        first = arrivals[0][1]
        if self._first_ns is None or first < self._first_ns:
            self._first_ns = first
        if num_passages:
            last = passed[-1][-1]
            stages[last.stage].count_blocked(note.worker, passed[0][0].started, last.ended, left)
        for stage in stages:
            if len(stage.starts) >= SLICE_SIZE:
                stage.sort_in()

    def _group(self, note: WorkNote) -> list[StageTotals]:
        group = [self._stage(stage.name) for stage in note.stages]
        self._groups[group[0].name] = group
        return group

    def _saw(self, first: int, last: int) -> None:
        if self._first_ns is None or first < self._first_ns:
            self._first_ns = first
        self._last_ns = max(self._last_ns, last)

    def _stage(self, name: str) -> StageTotals:
        stage = self._stages.get(name)
        if stage is None:
            seed = self._seed + 2 * len(self._stages) + 1
            stage = StageTotals(name, Reservoir(RESERVOIR_SIZE, seed), Reservoir(RESERVOIR_SIZE, seed + 1))
            stage.tell = None if self._listener is None else self._listener.take_times
            self._stages[name] = stage
        return stage

    def _in_order(self) -> list[StageTotals]:
        for stage in self._stages.values():
            stage.sort_in()
        with_work = [stage for stage in self._stages.values() if stage.items]
        return sorted(with_work, key=lambda stage: stage.first_start_ns or 0)

    def _elapsed_seconds(self) -> float:
        return (self._last_ns - self._first_ns) / 1e9 if self._first_ns is not None else 0.0

    def _throughput(self) -> float | None:
        # From the first arrival: what piled up before a slow stage is settled in a burst, and a burst is no rate.
        elapsed, delivered = self._elapsed_seconds(), self._counted.delivered
        return delivered / elapsed if delivered > 1 and elapsed > 0 else None

    def _stage_row(self, stage: StageTotals, elapsed: float) -> dict[str, Any]:
        workers = self.workers.get(stage.name)
        known = bool(workers) and elapsed > 0
        return {
            "name": stage.name,
            "workers": workers,
            "items": stage.items,
            "failed": stage.failed,
            "busy_seconds": stage.busy_ns / 1e9,
            "utilization_ratio": utilization(stage.busy_ns / 1e9, elapsed, workers or 1) if known else None,
            "blocked_ratio": utilization(stage.blocked_seconds(), elapsed, workers or 1) if known else None,
            "throughput_per_second": stage.items / elapsed if elapsed > 0 else None,
            "batches": {
                "count": stage.num_batches,
                "mean_size": stage.num_batched / stage.num_batches,
                "release_reasons": dict(sorted(stage.release_reasons.items())),
            }
            if stage.num_batches
            else None,
        }


@dataclass(frozen=True, slots=True)
class _Values:
    """A sample taken out of its reservoir."""

    sample: np.ndarray
    mean: float | None

    @classmethod
    def of(cls, reservoir: Reservoir) -> _Values:
        return cls(reservoir.sample(), reservoir.mean())

    def distribution(self) -> dict[str, Any]:
        """Return mean and percentiles in seconds."""
        found = {f"p{percent}": percentile(self.sample, percent) for percent in _PERCENTILES}
        return {
            "mean": self.mean / 1e9 if self.mean is not None else None,
            **{name: value.value / 1e9 if value.value is not None else None for name, value in found.items()},
            "num_samples": len(self.sample),
            "num_needed": {name: value.num_needed for name, value in found.items()},
        }


def _readable(document: Mapping[str, Any]) -> list[list[Any]]:
    """Return a summary as paragraphs: each a list of lines, or of rows with a header."""
    counters, latency, stages = document["counters"], document["latency_seconds"], document["stages"]
    counts = ", ".join(f"{counters[name]:,} {name.replace('_', '-')}" for name in _shown_counts(counters))
    parts: list[list[Any]] = [
        [
            f"{counts} in {format_duration(document['elapsed_seconds'])}" if counters["received"] else counts,
            f"throughput {format_rate(document['throughput_per_second'])}, latency "
            + ", ".join(f"p{percent} {format_duration(latency[f'p{percent}'])}" for percent in _PERCENTILES),
        ]
    ]
    if document["reasons"]:
        parts.append(["what failed:", *show_reasons(document["reasons"])])
    if stages:
        parts.append([_WORK, *(_work_row(stage) for stage in stages)])
        parts.append([_TIMES, *(_times_row(stage) for stage in stages)])
    foot = [_batches_line(stage) for stage in stages if stage["batches"]]
    distributions = [latency, *(stage["service_seconds"] for stage in stages)]
    short = [percent for percent in _PERCENTILES if any(values[f"p{percent}"] is None for values in distributions)]
    if short:
        needed = ", ".join(f"p{percent} needs {samples_needed(percent)}" for percent in short)
        foot.append(f"-  too few samples to quote: {needed}")
    return [*parts, foot] if foot else parts


def _work_row(stage: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        stage["name"],
        str(stage["workers"] or "-"),
        f"{stage['items']:,}",
        f"{stage['failed']:,}",
        format_rate(stage["throughput_per_second"]),
        _share(stage["utilization_ratio"]),
        _share(stage["blocked_ratio"]),
        f"{stage['batches']['mean_size']:.1f}" if stage["batches"] else "",
    )


def _times_row(stage: Mapping[str, Any]) -> tuple[str, ...]:
    service, wait = stage["service_seconds"], stage["queue_wait_seconds"]
    times = [*(service[name] for name in ("p50", "p90", "p99", "mean")), wait["p50"], wait["p90"]]
    return (stage["name"], *map(format_duration, times))


def _batches_line(stage: Mapping[str, Any]) -> str:
    batches = stage["batches"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in batches["release_reasons"].items())
    return (
        f"{stage['name']}: {batches['count']:,} batches of {batches['mean_size']:.1f} on average; released: {reasons}"
    )


def _shown_counts(counters: Mapping[str, Any]) -> list[str]:
    always = ["received", "delivered"]
    return always + [name for name in counters if name not in (*always, "notes") and counters[name]]


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.0f} %"
