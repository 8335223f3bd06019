"""Arithmetic of intervals: unions, differences, and how much of them lies in windows; int64, from `start` up to `end`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Intervals(NamedTuple):
    """Intervals in order of time that do not overlap."""

    start: Array
    end: Array

    @property
    def total(self) -> int:
        """What they cover."""
        return int((self.end - self.start).sum())


NONE = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(start: Array, end: Array) -> Intervals:
    """Return what intervals cover, which may overlap and come in any order."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return NONE
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    begins = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return Intervals(start[begins], reach[np.append(begins[1:] - 1, len(start) - 1)])


def join(*several: Intervals) -> Intervals:
    """Return what any of them covers."""
    return union(np.concatenate([one.start for one in several]), np.concatenate([one.end for one in several]))


def gaps(covered: Intervals, begin: int, end: int) -> Intervals:
    """Return what lies between a beginning and an end, and is not covered."""
    inside = clip(covered, begin, end)
    starts, ends = np.append(begin, inside.end), np.append(inside.start, end)
    kept = ends > starts
    return Intervals(starts[kept], ends[kept])


def clip(covered: Intervals, begin: int, end: int) -> Intervals:
    """Return what of it lies between a beginning and an end."""
    start, stop = np.maximum(covered.start, begin), np.minimum(covered.end, end)
    kept = stop > start
    return Intervals(start[kept], stop[kept])


def subtract(covered: Intervals, taken: Intervals) -> Intervals:
    """Return what the first covers and the second does not."""
    if not len(covered.start) or not len(taken.start):
        return covered
    begin, end = int(covered.start[0]), int(covered.end[-1])
    return intersect(covered, gaps(taken, begin, end))


def intersect(one: Intervals, other: Intervals) -> Intervals:
    """Return what both cover."""
    first = np.searchsorted(other.end, one.start, "right")
    last = np.searchsorted(other.start, one.end, "left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(one.start)), counts)
    offsets = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
    theirs = np.repeat(first, counts) + offsets
    return Intervals(np.maximum(one.start[mine], other.start[theirs]), np.minimum(one.end[mine], other.end[theirs]))


def within(covered: Intervals, edges: Array) -> Array:
    """Return int64, one shorter than the edges: how much is covered between each edge and the next."""
    if not len(covered.start):
        return np.zeros(len(edges) - 1, np.int64)
    before = np.append(0, np.cumsum(covered.end - covered.start))
    at = np.searchsorted(covered.start, edges, "right")
    begun = np.maximum(at - 1, 0)
    partial = np.clip(edges - covered.start[begun], 0, covered.end[begun] - covered.start[begun])
    return np.asarray(np.diff(np.where(at > 0, before[begun] + partial, 0)))
