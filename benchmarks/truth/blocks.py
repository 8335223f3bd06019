"""Runs one short block of a pipeline, without a profiler, and returns its rate in the steady part.

How this works: the first job goes ahead alone while the pipeline warms up. What is delivered in the next moments comes while
the queues fill: stages at the start take the cores from those at the end, and the rate is too low by up to a half. So the
clock starts after that. A block ends once it has lasted long enough and has items enough; a slow pipeline gets twice the time.
"""

from __future__ import annotations

import gc
import threading
import time

from benchmarks.truth.program import machine_of, pipeline_of, plan_of
from benchmarks.truth.spec import Spec
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.compare.blocks import FEWEST_READINGS, per_item
from headrace.pipeline.execute import Measuring, run

#: Queues count as full after so long and so many results, at the latest after the longer time. Fast pipelines fill at once.
#: Where all workers wait for one lock (seed 301), those at the start hold it while queues fill, and the end gets little for
#: much longer: a block from that time finds differences between pipelines that long runs do not have.
_FILLING_SECONDS, _FILLING_ITEMS, _LONGEST_FILLING_SECONDS = 0.2, 24, 1.5
#: A block with fewer items goes on, up to twice its time.
_USUAL_ITEMS = 40
#: A block that gives few results may take so many times as long.
_PATIENCE = 10
#: Control groups and neighbours come and go several times a second: a block has to hold some of their periods.
_PERIODIC_SECONDS = 0.8


class Settled(Observer):
    """Notes when jobs were delivered, and ends the run once that is enough for a rate.

    Args:
        seconds: How long, from the time on when the queues have filled.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = threading.Event()
        self._at_seconds: list[float] = []
        self._seconds = seconds
        self._second: float | None = None
        self._num_before = 0
        self._is_first = True

    @property
    def rate(self) -> float | None:
        """Jobs per second in the steady part; None: too few to tell."""
        each_seconds = per_item(self._at_seconds)
        return None if each_seconds is None else 1 / each_seconds

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Note it."""
        if outcome.kind is OutcomeKind.DELIVERED and not self.is_over.is_set():
            self.note(time.monotonic())

    def note(self, now: float) -> None:
        """Note that a job was delivered; the first one went ahead alone and does not count."""
        if self._is_first:
            self._is_first = False
            return
        self._second = now if self._second is None else self._second
        if not self._at_seconds and self._is_filling(now - self._second):
            self._num_before += 1
            return
        self._at_seconds.append(now)
        if self._is_enough(now - self._at_seconds[0], len(self._at_seconds)):
            self.is_over.set()

    def _is_filling(self, seconds: float) -> bool:
        if seconds >= _LONGEST_FILLING_SECONDS:
            return False
        return seconds < _FILLING_SECONDS or self._num_before < _FILLING_ITEMS

    def _is_enough(self, seconds: float, items: int) -> bool:
        usual = seconds >= self._seconds and items >= _USUAL_ITEMS
        return usual or (seconds >= 2 * self._seconds and items >= FEWEST_READINGS)


def throughput(spec: Spec, seconds: float) -> float | None:
    """Run a pipeline once, without a profiler, and return its jobs per second in the steady part; None: too few to tell.

    Raises:
        KeyboardInterrupt: If the user ended it.
    """
    settled = Settled(max(seconds, _PERIODIC_SECONDS) if _is_periodic(spec) else seconds)
    gc.collect()
    # What is inside when the time is over does not count, and is not waited for.
    plan = plan_of(spec).with_settings(["run.grace_seconds=0.01"])
    with machine_of(spec):
        result = run(
            pipeline_of(spec, _PATIENCE * seconds), plan, observers=[settled], stop=settled.is_over, checkpoint=False,
            measuring=Measuring(first_alone=True),
        )  # fmt: skip
    if result.interrupted and not settled.is_over.is_set():
        raise KeyboardInterrupt
    return settled.rate


def _is_periodic(spec: Spec) -> bool:
    return spec.machine.quota is not None or spec.machine.neighbours > 0
