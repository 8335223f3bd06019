"""Answers scrapes: what the pages hold, and what only who sees all workers can say."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.exposition import OPEN_METRICS_TYPE, TEXT_TYPE, Writer, wants_open_metrics
from headrace.monitor.metrics.gather import Gatherer, Histogram, Values
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.table import WANTED_REASONS

#: Share of what workers could do that they should do, and the time in which what waits should be gone.
WANTED_UTILIZATION, DRAIN_SECONDS = 0.8, 300.0
_ROUNDING = 1e-9


class Exporter:
    """Makes scrapes, one at a time; any thread.

    Args:
        workers: The pages of the worker slots.
        others: Pages of others that count, such as the supervisor.
        counts: Where scrapes are counted; its page is one of those given.
    """

    def __init__(self, workers: Sequence[Page], others: Sequence[Page], counts: Counts) -> None:
        self._workers = workers
        self._gatherer = Gatherer([*workers, *others])
        self._writer = Writer()
        self._counts = counts
        self._lock = threading.Lock()
        self._last_seconds = 0.0

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Return what there is now, and its content type, by a request's `Accept`."""
        with self._lock:
            began = time.perf_counter()
            self._counts.add("headrace_scrapes_total")
            found = self.gather()
            open_metrics = wants_open_metrics(accept)
            text = self._writer.write(found, open_metrics=open_metrics)
            self._last_seconds = time.perf_counter() - began
        return text, OPEN_METRICS_TYPE if open_metrics else TEXT_TYPE

    def gather(self) -> Mapping[str, Values]:
        """Return the values of all series."""
        found = dict(self._gatherer.gather())
        num_alive = sum(page.is_alive for page in self._workers)
        found["headrace_workers"] = {(): float(len(self._workers))}
        found["headrace_workers_alive"] = {(): float(num_alive)}
        found["headrace_scrape_seconds"] = {(): self._last_seconds}
        wanted = wanted_workers(found, num_alive)
        if wanted is not None:
            found["headrace_wanted_workers"] = {(): float(wanted.workers)}
            found["headrace_wanted_workers_reason"] = {(name,): float(name == wanted.reason) for name in WANTED_REASONS}
        full = utilization(found)
        if full is not None:
            found["headrace_utilization_ratio"] = {(): full}
        return found


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many workers, and why."""

    workers: int
    reason: str
    """One of `WANTED_REASONS`."""


def wanted_workers(found: Mapping[str, Values], num_alive: int) -> Wanted | None:
    """Return how many workers would do what comes and, in some minutes, what waits; None while nobody can tell.

    Args:
        found: Values of all series.
        num_alive: Workers that made them.
    """
    capacity = _value(found, "headrace_capacity_jobs_per_second")
    throughput = _value(found, "headrace_throughput_jobs_per_second")
    waiting = _value(found, "headrace_source_jobs", "visible")
    if not capacity or throughput is None or waiting is None or not num_alive:
        return None
    of_one = WANTED_UTILIZATION * capacity / num_alive
    for_arrivals = math.ceil(throughput / of_one - _ROUNDING)
    for_all = math.ceil((throughput + waiting / DRAIN_SECONDS) / of_one - _ROUNDING)
    if for_all > max(1, for_arrivals):
        return Wanted(for_all, "backlog")
    return Wanted(max(1, for_all), "arrivals" if for_all > 1 else "least")


def utilization(found: Mapping[str, Values]) -> float | None:
    """Return how many jobs there are for each that the workers may have in hand; None while nobody can tell."""
    slots, inside = _value(found, "headrace_job_slots"), _value(found, "headrace_jobs_in_flight")
    waiting = _value(found, "headrace_source_jobs", "visible")
    return (inside + waiting) / slots if slots and inside is not None and waiting is not None else None


def _value(found: Mapping[str, Values], name: str, *labels: str) -> float | None:
    value = found.get(name, {}).get(labels)
    return None if value is None or isinstance(value, Histogram) else value
