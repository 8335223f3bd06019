"""What the flight recorder costs: CPU per item with it over the same without, in pairs of runs one after the other."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
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
_PAIRS, _SECONDS = 16, 3.5


def measure(quick: bool) -> dict[str, Any]:
    """Return what `recorder` holds of the cost."""
    shares = measure_cpu_shares(pairs=1, seconds=2.0) if quick else measure_cpu_shares(pairs=_PAIRS, seconds=_SECONDS)
    interval = paired_interval(shares)
    return {
        "recorder": {
            "cpu_share": interval.mid if interval else statistics.median(shares),
            "cpu_share_of_each_pair": shares,
            "cpu_share_interval": None if interval is None else [interval.low, interval.high],
        }
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page."""
    found = result["recorder"]
    pairs = ", ".join(f"{share:+.2%}" for share in sorted(found["cpu_share_of_each_pair"]))
    interval = found["cpu_share_interval"]
    between = f", 95 % interval {interval[0]:+.2%} to {interval[1]:+.2%}" if interval else ""
    return (
        f"## What the flight recorder costs\n\nCPU per item of a run of {RATE:g} items/s with the recorder over the same "
        f"without: {found['cpu_share']:+.2%} in the middle of pairs{between} (goal {MOST_CPU_SHARE:.0%}). The pairs: {pairs}."
    )


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line if the goal was missed."""
    share = result["recorder"]["cpu_share"]
    if share > MOST_CPU_SHARE and not result["quick"]:  # a few seconds say nothing of one per cent
        return [f"recorder: {share:.2%} of CPU, goal {MOST_CPU_SHARE:.0%}"]
    return []


def measure_cpu_shares(*, pairs: int, seconds: float) -> list[float]:
    """Return by how much the CPU per item is higher with the recorder, for each pair of runs."""
    work.calibrate()
    shares = []
    for number in range(pairs):
        print(f"cost: pair {number + 1} of {pairs}", file=sys.stderr, flush=True)
        order = (False, True) if number % 2 == 0 else (True, False)
        with before_others():
            costs = {is_on: _cpu_per_item(is_on, seconds) for is_on in order}
        shares.append(costs[True] / costs[False] - 1)
    return shares


def _cpu_per_item(is_on: bool, seconds: float) -> float:
    """Return CPU seconds per delivered item of six stages at 400 items a second."""
    stages = [hr.stage(f"s{number}", _burn, releases_gil=True) for number in range(5)]
    source = FedQueue([b"x"], seconds, Broker(rate_per_second=RATE))
    pipeline = hr.Pipeline(source, stages=stages, delivery=hr.collect())
    recorder, settled = Recorder(RecorderSettings()), _Settled()
    options: dict[str, Any] = {"observers": [recorder, settled], "watch": recorder.watch} if is_on else {}
    run(pipeline, Plan(), **{"observers": [settled], **options})
    (first_cpu, first), (last_cpu, last) = settled.readings[0], settled.readings[-1]
    return (last_cpu - first_cpu) / max(1, last - first)


class _Settled(Observer):
    """Notes what the process used whenever 100 jobs had been settled: opening and closing are no cost of each item."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, int]] = []
        self._count = itertools.count(1)

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count it."""
        number = next(self._count)
        if number % 100 == 0:
            self.readings.append((time.process_time(), number))


def _burn(value: Any) -> Any:
    work.burn(_STAGE_SECONDS)
    return value
