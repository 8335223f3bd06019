"""Counts into a page: finds the place of a series and its labels, keeps labels few, and never raises."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from headrace.base.formatting import encodable
from headrace.monitor.metrics.page import WITH_EXEMPLARS, Entry, Page
from headrace.monitor.metrics.table import OTHER, SERIES, Label, Series

_DROPPED = "headrace_metrics_dropped_total"
#: Characters of a label that are kept.
_LABEL_CHARACTERS = 80


class LabelLimits:
    """Keeps the values of each label few: those of its closed set, or the first `Label.most`; the rest is `other`."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], set[str]] = {}

    def bound(self, series: Series, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the values under which something counts."""
        return tuple(
            self._bound_one(series.name, label, value) for label, value in zip(series.labels, labels, strict=True)
        )

    def _bound_one(self, series: str, label: Label, value: str) -> str:
        if label.values:
            return value if value in label.values else OTHER
        known = self._known.setdefault((series, label.name), set())
        if value not in known:
            if len(known) >= label.most:
                return OTHER
            known.add(value)
        return value


class Counts:
    """Writes the numbers of one process. Thread-safe.

    Args:
        page: Where; what is there already goes on.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self._lock = threading.Lock()
        self._limits = LabelLimits()
        self._entries: dict[tuple[str, tuple[str, ...]], Entry | None] = {}
        self._by_text = {(entry.series.name, entry.labels): entry for entry in page.entries()}
        for entry in page.entries():
            self._limits.bound(entry.series, entry.labels)
        self._seen: dict[tuple[str, tuple[str, ...]], float] = {}
        self._bounds = {
            name: [bound * 1e9 for bound in series.buckets]
            for name, series in SERIES.items()
            if series.unit == "seconds"
        }

    def add(self, name: str, labels: tuple[str, ...] = (), amount: float = 1.0) -> None:
        """Add to a counter."""
        with self._lock:
            self._add(name, labels, amount)

    def set(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        """Set a gauge."""
        with self._lock:
            entry = self._find(name, labels)
            if entry is not None:
                self.page.numbers[entry.at] = value

    def follow(self, name: str, total: float, labels: tuple[str, ...] = ()) -> None:
        """Add to a counter what something else has counted since it was last asked, which never takes back what it said."""
        with self._lock:
            before = self._seen.get((name, labels), 0.0)
            self._seen[name, labels] = max(before, total)
            self._add(name, labels, max(0.0, total - before))

    def follow_anew(self, name: str) -> None:
        """Note that what a counter follows began again from 0."""
        with self._lock:
            self._seen = {key: seen for key, seen in self._seen.items() if key[0] != name}

    def observe(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        """Count a value in a histogram, in its unit."""
        with self._lock:
            entry = self._find(name, labels)
            if entry is None:
                return
            bounds, numbers = entry.series.buckets, self.page.numbers
            numbers[entry.at + bisect_left(bounds, value)] += 1.0
            numbers[entry.at + len(bounds) + 1] += value

    def observe_jobs(self, name: str, jobs: Sequence[tuple[int, str]], labels: tuple[str, ...] = ()) -> None:
        """Count (time in ns, job's id) in a histogram of seconds; the last job of a bucket is its exemplar."""
        with self._lock:
            entry = self._find(name, labels)
            if entry is None:
                return
            bounds, numbers, last = self._bounds[name], self.page.numbers, {}
            for nanoseconds, job in jobs:
                bucket = bisect_left(bounds, nanoseconds)
                numbers[entry.at + bucket] += 1.0
                last[bucket] = nanoseconds, job
            numbers[entry.at + len(bounds) + 1] += sum(nanoseconds for nanoseconds, _ in jobs) / 1e9
            if name in WITH_EXEMPLARS:
                for bucket, (nanoseconds, job) in last.items():
                    self.page.set_exemplar(entry, bucket, job, nanoseconds / 1e9)

    def observe_many(self, name: str, nanoseconds: Sequence[int], labels: tuple[str, ...] = ()) -> None:
        """Count times in a histogram of seconds."""
        # Sorted, each bound is looked for once; NumPy takes three times as long for the usual hundred or so.
        values, bounds = sorted(nanoseconds), self._bounds[name]
        with self._lock:
            entry = self._find(name, labels)
            if entry is None or not values:
                return
            numbers, at = self.page.numbers, 0
            while at < len(values):
                bucket = bisect_left(bounds, values[at])
                end = bisect_right(values, bounds[bucket], at) if bucket < len(bounds) else len(values)
                numbers[entry.at + bucket] += end - at
                at = end
            numbers[entry.at + len(bounds) + 1] += sum(values) / 1e9

    def note_dropped(self, reason: str) -> None:
        """Count an observation that is missing."""
        self.add(_DROPPED, (reason,))

    def _add(self, name: str, labels: tuple[str, ...], amount: float) -> None:
        entry = self._find(name, labels)
        if entry is not None:
            self.page.numbers[entry.at] += amount

    def _find(self, name: str, labels: tuple[str, ...]) -> Entry | None:
        """Return where a series is, made if need be; None where there is no room, or a closed set has no `other`."""
        try:
            entry = self._entries[name, labels]
        except KeyError:
            entry = self._make(name, labels)
        else:
            if entry is not None:
                return entry
        if entry is None and name != _DROPPED:
            self._add(_DROPPED, ("room",), 1.0)
        return entry

    def _make(self, name: str, labels: tuple[str, ...]) -> Entry | None:
        series = SERIES[name]
        short = [encodable(value)[:_LABEL_CHARACTERS].replace("\x1f", " ") for value in labels]
        bounded = self._limits.bound(series, short)
        entry = self._by_text.get((name, bounded)) or self.page.add(series, bounded)
        if entry is not None:
            self._by_text[name, bounded] = entry
        if bounded == labels:  # others are not remembered: strangers' names would fill the memory
            self._entries[name, labels] = entry
        elif OTHER in bounded:
            self._add(_DROPPED, ("label",), 1.0)
        return entry
