"""Spans put together again to jobs: when each arrived, when it was over, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.span_columns import Array, SpanColumns


@dataclass(frozen=True, slots=True)
class Jobs:
    """Deliveries of jobs that have spans and came to an end, in the order of their ends."""

    root: Array
    """int32, code of `SpanColumns.unit_ids`."""
    attempt: Array
    arrived: Array
    """int64, ns since the run's first arrival."""
    ended: Array
    """int64, ns: the last thing that happened to it; a result that is flushed later was settled later."""
    is_delivered: Array
    """bool."""
    weight: Array
    """float64: how many jobs it stands for."""

    def __len__(self) -> int:
        return len(self.root)

    def latency_seconds(self) -> Array:
        """Return the time from arrival to end of each, float64."""
        return np.asarray((self.ended - self.arrived) / 1e9)


def find_jobs(spans: SpanColumns, last_stage: str | None) -> Jobs:
    """Return the jobs that ended: delivered, or with a failure as the last that is known of them.

    Args:
        spans: Of the whole run.
        last_stage: The stage that delivers; None if it is not known, and then nothing is taken as delivered.
    """
    count = max(1, len(spans.unit_ids))
    attempts = int(spans.attempt.max(initial=0)) + 1
    job = spans.root.astype(np.int64) * attempts + spans.attempt
    size = count * attempts
    if size > 4 * len(spans) + 1024:  # few of the possible keys occur: number those that do
        known, job = np.unique(job, return_inverse=True)
        size = len(known)
    else:
        known = np.arange(size)
    arrived, ended = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(arrived, job, spans.arrived)
    np.maximum.at(ended, job, spans.put)
    weight = np.zeros(size)
    weight[job] = spans.weight
    is_delivered = np.zeros(size, bool)
    if last_stage is not None:
        rows = spans.of(last_stage)
        is_delivered[job[rows][spans.is_ok[rows]]] = True
    is_over = is_delivered.copy()
    is_over[job[~spans.is_ok & (spans.put == ended[job])]] = True
    found = np.flatnonzero(is_over)
    found = found[np.argsort(ended[found], kind="stable")]
    return Jobs(
        root=(known[found] // attempts).astype(np.int32),
        attempt=known[found] % attempts,
        arrived=arrived[found],
        ended=ended[found],
        is_delivered=is_delivered[found],
        weight=weight[found],
    )
