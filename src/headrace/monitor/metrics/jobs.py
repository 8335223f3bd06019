"""Counts jobs and batches as they come and end; what stages did comes from the run's summary, see `watch`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.base.observer import Observer
from headrace.base.records import BatchFormed, Job, Outcome, OutcomeKind
from headrace.monitor.metrics.counts import Counts
from headrace.pipeline.reasons import failure_of


class JobCounts(Observer):
    """Its hooks are called by the threads that do the work: each costs a few microseconds.

    Args:
        counts: Where.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._came: dict[tuple[str, int], float] = {}

    def job_received(self, jobs: Sequence[Job]) -> None:
        """Count jobs, and note when they came."""
        now, came = time.monotonic(), self._came
        num_again = 0
        for job in jobs:
            came[job.id, job.attempt] = now
            num_again += job.attempt > 1
        self._counts.add("headrace_jobs_received_total", (), len(jobs))
        if num_again:
            self._counts.add("headrace_jobs_redelivered_total", (), num_again)

    def batch_formed(self, batch: BatchFormed) -> None:
        """Count a batch."""
        stage = (batch.stage,)
        self._counts.observe("headrace_batch_size_items", batch.size, stage)
        self._counts.observe("headrace_batch_wait_seconds", batch.waited_seconds, stage)
        self._counts.add("headrace_batches_total", (batch.stage, str(batch.reason)))

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count how a delivery ended."""
        counts, kind = self._counts, outcome.kind
        came = self._came.pop((job.id, job.attempt), None)
        counts.add("headrace_jobs_total", (job.task, kind.value))
        if kind is OutcomeKind.DELIVERED:
            if came is not None:
                seconds = time.monotonic() - came
                counts.observe("headrace_job_latency_seconds", seconds, (job.task,), job=job.id)
            return
        if outcome.undelivered:
            counts.add("headrace_undelivered_total")
        if (failure := failure_of(job, outcome)) is not None:
            counts.add("headrace_job_failures_total", (failure.code, kind.value))
