"""What the flight recorder costs: the CPU that it adds to an item, as a share of the item's, in pairs of runs in turn.

The stages burn CPU, the time of which differs by a tenth from run to run; it is measured by itself and left out of the
difference. What is left is what the runtime and the recorder take. The first seconds, in which the recorder describes machine,
versions and Plan, are no cost of each item; they are stated by themselves.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import headrace as hr
from benchmarks.faults import work
from benchmarks.faults.sources import Broker, FedQueue
from benchmarks.watch.quiet import before_others
from headrace.base.observer import Observer
from headrace.base.plan import Plan
from headrace.base.records import Job, Outcome
from headrace.compare.intervals import paired_interval
from headrace.monitor.recorder.recorder import Recorder, RecorderSettings
from headrace.pipeline.execute import run

RATE = 400.0
_STAGE_SECONDS = 0.0006
MOST_CPU_SHARE = 0.01
_PAIRS, _SECONDS = 16, 6.0
#: Jobs of the first seconds, and how many jobs lie between two readings.
_FIRST_JOBS, _EACH = 800, 100


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of one run, in seconds."""

    of_item: float
    """Of an item after the first seconds, with what the stages burn."""
    beside_item: float
    """The same without what the stages burn."""
    beside_first: float
    """Of the first seconds, without what the stages burn."""


def measure(quick: bool) -> dict[str, Any]:
    """Return what `recorder` holds of the cost."""
    pairs = measure_pairs(pairs=1, seconds=3.0) if quick else measure_pairs(pairs=_PAIRS, seconds=_SECONDS)
    shares = [(on.beside_item - off.beside_item) / off.of_item for off, on in pairs]
    first = [on.beside_first - off.beside_first - _FIRST_JOBS * (on.beside_item - off.beside_item) for off, on in pairs]
    interval = paired_interval(shares)
    return {
        "recorder": {
            "cpu_share": interval.mid if interval else statistics.median(shares),
            "cpu_share_of_each_pair": shares,
            "cpu_share_interval": None if interval is None else [interval.low, interval.high],
            "first_cpu_ms": 1e3 * statistics.median(first),
        }
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    found = result["recorder"]
    pairs = ", ".join(f"{share:+.2%}" for share in sorted(found["cpu_share_of_each_pair"]))
    interval = found["cpu_share_interval"]
    between = f", 95 % interval {interval[0]:+.2%} to {interval[1]:+.2%}" if interval else ""
    return (
        f"## What the flight recorder costs\n\nCPU that the recorder adds to an item at {RATE:g} items/s, of the item's "
        f"without it: {found['cpu_share']:+.2%} in the middle of pairs{between} (goal {MOST_CPU_SHARE:.0%}). Its first seconds "
        f"take {found['first_cpu_ms']:.0f} ms more, once. The pairs: {pairs}."
    )


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line if the goal was missed."""
    share = result["recorder"]["cpu_share"]
    if share > MOST_CPU_SHARE and not result["quick"]:  # a few seconds say nothing of one per cent
        return [f"recorder: {share:.2%} of CPU, goal {MOST_CPU_SHARE:.0%}"]
    return []


def measure_pairs(*, pairs: int, seconds: float) -> list[tuple[Cost, Cost]]:
    """Return what runs cost without the recorder and with it, for each pair."""
    work.calibrate()
    found = []
    for number in range(pairs):
        print(f"cost: pair {number + 1} of {pairs}", file=sys.stderr, flush=True)
        order = (False, True) if number % 2 == 0 else (True, False)
        with before_others():
            costs = {is_on: _measure_run(is_on, seconds) for is_on in order}
        found.append((costs[False], costs[True]))
    return found


def _measure_run(is_on: bool, seconds: float) -> Cost:
    """Return what six stages cost at 400 items a second."""
    burn = _Burn()
    stages = [hr.stage(f"s{number}", burn, releases_gil=True) for number in range(5)]
    source = FedQueue([b"x"], seconds, Broker(rate_per_second=RATE))
    pipeline = hr.Pipeline(source, stages=stages, delivery=hr.collect())
    recorder, settled = Recorder(RecorderSettings()), _Settled(burn)
    options: dict[str, Any] = {"observers": [recorder, settled], "watch": recorder.watch} if is_on else {}
    run(pipeline, Plan(), **{"observers": [settled], **options})
    begin, (first, first_burned), (last, last_burned) = settled.began, settled.first, settled.last
    num_items = settled.number - _FIRST_JOBS
    burned = last_burned - first_burned
    return Cost((last - first) / num_items, (last - first - burned) / num_items, first - first_burned - begin)


class _Burn:
    """A stage that burns CPU, and how much all threads burnt."""

    def __init__(self) -> None:
        self._of_thread: dict[int, float] = {}

    def __call__(self, value: Any) -> Any:
        began = time.thread_time()
        work.burn(_STAGE_SECONDS)
        thread = threading.get_ident()
        self._of_thread[thread] = self._of_thread.get(thread, 0.0) + time.thread_time() - began
        return value

    def total(self) -> float:
        """Return the CPU seconds of all calls that have ended."""
        return sum(list(self._of_thread.values()))


class _Settled(Observer):
    """Reads what the process and its stages used, after the first jobs and whenever some more had been settled."""

    def __init__(self, burn: _Burn) -> None:
        self._burn = burn
        self._count = itertools.count(1)
        self.began = time.process_time()
        self.first = self.last = (0.0, 0.0)
        self.number = 0

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count it."""
        number = next(self._count)
        if number % _EACH == 0 and number >= _FIRST_JOBS:
            self.number, self.last = number, (time.process_time(), self._burn.total())
            if number == _FIRST_JOBS:
                self.first = self.last
