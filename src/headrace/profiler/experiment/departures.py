"""Counts what leaves the stations while an experiment goes on, and how long their stages worked for it.

How this works: each station's lever calls `passed` in the thread that hands items on; a list takes one entry, which needs no
lock. The thread that experiments asks for the figures of a stretch afterwards. Spans would do, but only some jobs have them,
and they come late.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.pipeline.levers import Adjustable

#: Bunches of results in a stretch below which the rate is taken over the whole stretch.
_FEWEST_BUNCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one stretch measured."""

    num_items: int
    throughput: float | None
    """Items per second; None without any."""
    latency: float | None
    """Median seconds from receipt to departure; None without any."""
    busy_seconds: dict[str, float]
    """{station: time of its workers in the stages}."""
    service_seconds: dict[str, float]
    """{station: mean per item}."""


@dataclass(slots=True)
class _Passed:
    at: float
    num: int
    busy: float
    ages: list[float]


class Departures:
    """Of one run; told of items in any thread.

    Args:
        stations: Whose items are counted.
    """

    def __init__(self, stations: Sequence[Adjustable]) -> None:
        self._stations = stations
        self._passed: dict[str, list[_Passed]] = {station.lever.name: [] for station in stations}

    def begin(self) -> None:
        """Listen from now on."""
        for station in self._stations:
            station.lever.passed = functools.partial(self._note, station, self._passed[station.lever.name])

    def end(self) -> None:
        """Listen no more."""
        for station in self._stations:
            station.lever.passed = None

    def stretch(self, began: float, ended: float) -> Measured:
        """Return what left between two times, and forget what was before the end.

        Args:
            began: By the monotonic clock, seconds.
            ended: Now, or before.
        """
        last: list[_Passed] = []
        busy: dict[str, float] = {}
        service: dict[str, float] = {}
        for station in self._stations:
            name = station.lever.name
            kept = self._passed[name]
            num_over = sum(1 for one in list(kept) if one.at < ended)
            over = [one for one in kept[:num_over] if one.at >= began]
            del kept[:num_over]
            num = sum(one.num for one in over)
            busy[name] = sum(one.busy for one in over)
            if num:
                service[name] = busy[name] / num
            if station.is_last:
                last += over
        last.sort(key=lambda one: one.at)
        ages = [age for one in last for age in one.ages]
        return Measured(
            num_items=sum(one.num for one in last),
            throughput=_rate([(one.at, one.num) for one in last], ended - began),
            latency=statistics.median(ages) if ages else None,
            busy_seconds=busy,
            service_seconds=service,
        )

    def _note(self, station: Adjustable, passed: list[_Passed], items: Sequence[Any]) -> None:
        good = [item for item in items if item.error is None]
        if not good:
            return
        # Of a batch every item tells the same passage: it counts once.
        times = {(one.stage, one.started, one.ended) for item in items for one in item.timings}
        now_ns = time.monotonic_ns()
        ages = [(now_ns - item.received) / 1e9 for item in good if item.received] if station.is_last else []
        passed.append(_Passed(now_ns / 1e9, len(good), sum(end - begin for _, begin, end in times) / 1e9, ages))


def _rate(passed: Sequence[tuple[float, int]], seconds: float) -> float | None:
    """Return items per second: between the first and the last bunch, so that the ends of the stretch cut none in two."""
    num = sum(count for _, count in passed)
    if not num:
        return None
    between = passed[-1][0] - passed[0][0]
    if len(passed) < _FEWEST_BUNCHES or between < seconds / 2:
        return num / seconds
    return (num - passed[0][1]) / between
