"""Adds up the pages of all workers to the values that a scrape shows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.monitor.metrics.counts import LabelLimits
from headrace.monitor.metrics.page import WITH_EXEMPLARS, Entry, Exemplar, Page
from headrace.monitor.metrics.table import Kind, Merge, Series


@dataclass(slots=True)
class Histogram:
    """The numbers of one histogram with its labels."""

    counts: list[float]
    """In each bucket alone, the last one for what is above all bounds."""
    total: float
    """Sum of all values."""
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """{bucket: the latest job that it counted}."""


_MERGED: dict[Merge, Callable[[float, float], float]] = {Merge.SUM: operator.add, Merge.MAX: max, Merge.MIN: min}
#: {labels: value} of one series.
Values = dict[tuple[str, ...], float | Histogram]


class Gatherer:
    """Reads pages; for one thread at a time.

    Args:
        pages: Of all who count.
    """

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages
        self._limits = LabelLimits()
        self._keys: list[list[tuple[Entry, tuple[str, ...]]]] = [[] for _ in pages]

    def gather(self) -> Mapping[str, Values]:
        """Return {name of a series: its values now}; series without any are left out."""
        found: dict[str, Values] = {}
        for page, keys in zip(self._pages, self._keys, strict=True):
            entries = page.entries()
            keys += [(entry, self._limits.bound(entry.series, entry.labels)) for entry in entries[len(keys) :]]
            is_alive = page.is_alive
            for entry, labels in keys:
                kind = entry.series.kind
                if kind is Kind.HISTOGRAM:
                    _merge_histogram(found.setdefault(entry.series.name, {}), labels, page, entry)
                elif kind is Kind.COUNTER or is_alive:
                    _merge_number(found.setdefault(entry.series.name, {}), labels, page.numbers[entry.at], entry.series)
        return {name: values for name, values in found.items() if values}


def _merge_number(values: Values, labels: tuple[str, ...], number: float, series: Series) -> None:
    if math.isnan(number):  # a gauge that nobody has set
        return
    before = values.get(labels)
    if isinstance(before, float):
        number = _MERGED[series.merge](before, number)
    values[labels] = number


def _merge_histogram(values: Values, labels: tuple[str, ...], page: Page, entry: Entry) -> None:
    num = len(entry.series.buckets) + 1
    *counts, total = page.numbers[entry.at : entry.at + num + 1].tolist()
    merged = values.get(labels)
    if not isinstance(merged, Histogram):
        merged = values[labels] = Histogram([0.0] * num, 0.0)
    merged.counts = [one + other for one, other in zip(merged.counts, counts, strict=True)]
    merged.total += total
    if entry.series.name in WITH_EXEMPLARS:
        for bucket, count in enumerate(counts):
            exemplar = page.exemplar(entry, bucket) if count else None
            known = merged.exemplars.get(bucket)
            if exemplar is not None and (known is None or known.unix_seconds < exemplar.unix_seconds):
                merged.exemplars[bucket] = exemplar
