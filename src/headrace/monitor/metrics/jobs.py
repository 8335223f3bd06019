"""Counts what the run's summary tells in bulk: jobs, batches, and the times of stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from headrace.base.records import BatchFormed, OutcomeKind
from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.table import OTHER
from headrace.pipeline.told import Ended


class JobCounts:
    """A listener of the summary.

    Args:
        counts: Where.
        tasks: Of the pipeline; the one without a name takes jobs of any.
    """

    def __init__(self, counts: Counts, tasks: Collection[str]) -> None:
        self._counts = counts
        self._tasks = frozenset(tasks)
        self._others = "" if "" in self._tasks else OTHER

    def take_received(self, num: int, num_again: int) -> None:
        """Count jobs that came."""
        self._counts.add("headrace_jobs_received_total", (), num)
        if num_again:
            self._counts.add("headrace_jobs_redelivered_total", (), num_again)

    def take_times(self, stage: str, services: Sequence[int], waits: Sequence[int]) -> None:
        """Count the times of passages."""
        self._counts.observe_many("headrace_stage_service_seconds", services, (stage,))
        self._counts.observe_many("headrace_stage_queue_wait_seconds", waits, (stage,))

    def take_batches(self, batches: Sequence[BatchFormed]) -> None:
        """Count batches."""
        for batch in batches:
            stage = (batch.stage,)
            self._counts.observe("headrace_batch_size_items", batch.size, stage)
            self._counts.observe("headrace_batch_wait_seconds", batch.waited_seconds, stage)
            self._counts.add("headrace_batches_total", (batch.stage, str(batch.reason)))

    def take_ended(self, ended: Sequence[Ended], latencies: Sequence[int | None]) -> None:
        """Count how deliveries ended."""
        done: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        others: list[Ended] = []
        for one, latency in zip(ended, latencies, strict=True):
            if latency is None:
                others.append(one)
            else:
                done[self._label(one[5])].append((latency, one[1]))
        for task, jobs in done.items():
            self._counts.add("headrace_jobs_total", (task, OutcomeKind.DELIVERED.value), len(jobs))
            self._counts.observe_jobs("headrace_job_latency_seconds", jobs, (task,))
        for _, _, _, kind, failure, task, undelivered in others:
            self._counts.add("headrace_jobs_total", (self._label(task), kind.value))
            if undelivered:
                self._counts.add("headrace_undelivered_total")
            if failure is not None:
                self._counts.add("headrace_job_failures_total", (failure.code, kind.value))

    def _label(self, task: str) -> str:
        """Return the task under which a job counts: what it names is whatever its sender wrote."""
        return task if task in self._tasks else self._others
