"""Warm-up of a device stage: each batch size that will be used is called with a real item, and what it costs is kept.

The first call of a size pays for allocation and compilation and is not counted. Whoever profiles may ask for more: larger
batches than the Plan's, so that a run at batch 1 tells what batch 8 would cost, and several calls of each. That more is
bounded in time and memory, ends at the first size that fails (a model of fixed batch, too little memory), and never fails
the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.base.error_origin import text_of
from headrace.base.policies.batching import warm_up_sizes
from headrace.pipeline.batch_buffer import BatchBuffer
from headrace.pipeline.sizes import measure
from headrace.pipeline.users_code import raise_if_of_the_run
from headrace.stages.module import check_results

#: How long what goes beyond the Plan's own sizes may take, about.
_BUDGET_SECONDS = 1.5


class CostCurve(msgspec.Struct):
    """Measured seconds per call by batch size."""

    stage: str
    seconds: dict[int, list[float]] = {}
    """{batch size: wall time of each call that counts}."""
    call_cpu_seconds: dict[int, list[float]] = {}
    """CPU time of the calling thread in the same calls; a model's own threads are not in it."""
    num_calls: int = 0
    """Calls that came back, with those that do not count."""
    cpu_seconds: float = 0.0
    """CPU time of the thread over the whole warm-up; 0 where another process did it."""
    not_measured: str = ""
    """Why sizes beyond the Plan's own are missing; empty if none is, or if none was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What is measured beyond one call of each of the Plan's own sizes."""

    curve_batch: int = 0
    """The powers of two up to this batch size too."""
    repeats: int = 1
    """Calls of each size that count, as far as there is time."""
    max_bytes: int = 256 * 2**20
    """Larger inputs than this are not made for sizes beyond the Plan's own."""


def measure_curve(
    curve: CostCurve,
    call: Callable[[Any], Any],
    value: Any,
    *,
    buffer: BatchBuffer,
    max_batch: int,
    more: WarmUp,
    now_ns: Callable[[], int],
    before_call: Callable[[int], object] = lambda size: None,
) -> None:
    """Fill in a cost curve.

    Args:
        curve: Of the stage, empty.
        call: The stage: a batch to as many results.
        value: One input; a batch holds it several times.
        buffer: Where batches of the Plan's own sizes live.
        max_batch: The Plan's.
        more: What is wanted beyond that.
        now_ns: The run's clock.
        before_call: Called with the size of each batch before it: whoever watches for calls that hang wants to know.
    """
    trial = _Trial(curve, call, value, now_ns, before_call)
    try:
        for size in warm_up_sizes(max_batch):
            trial.begin(size, buffer)
    except BaseException as error:  # the item may be a bad one; the real batch will tell
        raise_if_of_the_run(error)
        return
    budget = _Budget(curve, now_ns)
    further = BatchBuffer(1)  # given back at the end: the run needs no such sizes
    for size in warm_up_sizes(max(max_batch, more.curve_batch)):
        if size not in curve.seconds:
            curve.not_measured = _try_further(trial, size, further, budget, more.max_bytes)
            if curve.not_measured:
                break
    _repeat(trial, more.repeats - 1, budget)


def _try_further(trial: _Trial, size: int, buffer: BatchBuffer, budget: _Budget, max_bytes: int) -> str:
    """Measure a size beyond the Plan's own; return why not, empty if it was measured."""
    num_bytes = size * measure(trial.value)[0]
    if num_bytes > max_bytes:
        reason = f"the input alone would take {num_bytes / 2**20:.0f} MiB; {max_bytes // 2**20} MiB are the most"
    elif not budget.has(2, size):
        reason = f"it would take more than the {_BUDGET_SECONDS:g} s that warm-up has for it"
    else:
        try:
            trial.begin(size, buffer)
            return ""
        except BaseException as error:
            raise_if_of_the_run(error)
            text = next(iter(text_of(error).splitlines()), "")
            reason = f"the stage does not take it ({text[:200]})"
    return f"no batch of {size} or more was measured at warm-up: {reason}"


def _repeat(trial: _Trial, times: int, budget: _Budget) -> None:
    # In turns, so that a slow moment of the machine is not all in one size.
    for _ in range(times):
        for size in trial.curve.seconds:
            if not budget.has(1, size):
                continue
            try:
                trial.again(size)
            except BaseException as error:  # what was measured before stands
                raise_if_of_the_run(error)
                return


class _Budget:
    """The time for what goes beyond the Plan's own sizes, from now on.

    Args:
        curve: What is known of the costs.
        now_ns: The run's clock.
    """

    def __init__(self, curve: CostCurve, now_ns: Callable[[], int]) -> None:
        self._curve = curve
        self._now_ns = now_ns
        self._ends = now_ns() + round(_BUDGET_SECONDS * 1e9)

    def has(self, num_calls: int, size: int) -> bool:
        """Return whether there is time for calls of a size, which costs at most as much for each item as smaller ones do."""
        known = max((known for known in self._curve.seconds if known <= size), default=0)
        if not known:
            return False
        expected = num_calls * min(self._curve.seconds[known]) * size / known
        return self._now_ns() + round(expected * 1e9) <= self._ends


class _Trial:
    """Calls the stage and notes what it costs."""

    def __init__(
        self,
        curve: CostCurve,
        call: Callable[[Any], Any],
        value: Any,
        now_ns: Callable[[], int],
        before_call: Callable[[int], object],
    ) -> None:
        self.curve = curve
        self._before_call = before_call
        self.value = value
        self._call = call
        self._now_ns = now_ns
        self._buffers: dict[int, BatchBuffer] = {}

    def begin(self, size: int, buffer: BatchBuffer) -> None:
        """Call with a size for the first time, then once that counts.

        Raises:
            Exception: Whatever the stage raises.
        """
        self._buffers[size] = buffer
        self._time(size)
        seconds, cpu_seconds = self._time(size)
        self.curve.seconds[size], self.curve.call_cpu_seconds[size] = [seconds], [cpu_seconds]

    def again(self, size: int) -> None:
        """Call once more; raises what the stage raises."""
        seconds, cpu_seconds = self._time(size)
        self.curve.seconds[size].append(seconds)
        self.curve.call_cpu_seconds[size].append(cpu_seconds)

    def _time(self, size: int) -> tuple[float, float]:
        inputs = self._buffers[size].stack([self.value] * size)  # again each time: a stage may write into its batch
        self._before_call(size)
        cpu_began, began = time.thread_time_ns(), self._now_ns()
        results = self._call(inputs)
        ended, cpu_ended = self._now_ns(), time.thread_time_ns()
        self.curve.num_calls += 1
        check_results(results, size, self.curve.stage)
        return (ended - began) / 1e9, (cpu_ended - cpu_began) / 1e9
