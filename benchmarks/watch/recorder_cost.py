"""What the flight recorder costs: CPU per item with it over the same without, in pairs of runs one after the other."""

from __future__ import annotations

import itertools
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
from headrace.monitor.recorder.recorder import Recorder, RecorderSettings
from headrace.pipeline.execute import run

RATE = 400.0
_STAGE_SECONDS = 0.0006


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
