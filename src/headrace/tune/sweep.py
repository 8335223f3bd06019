"""What each batch size costs on the device: one short run with 1, 2, 4, ... items, until it no longer pays.

How this works: the runtime's warm-up calls each size with the first real item, copied. An instrument around the stage
repeats each call, takes the median, and reads how much memory the process had at most. When two doublings in a row
gained little, or memory ran out, it refuses larger ones; warm-up then ends and the run is over after its few items.

The sweet spot is the smallest batch that has most of what batching gains, and not the largest that fits: beyond it only
latency and memory grow.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.base.errors import HeadraceError
from headrace.base.plan import Plan
from headrace.compare.blocks import SameItems, replace_parts
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, run
from headrace.runs.formats.tuning import SweepPoint
from headrace.sources.finite import FiniteSource
from headrace.tune.out_of_memory import is_out_of_memory

#: Largest batch that is tried.
LARGEST_BATCH = 64
#: The sweet spot has so much of what batching gains at best, as a share of the gain.
SWEET_SHARE = 0.95
#: A doubling that gains less ...
_LITTLE = 0.02
#: ... twice in a row is the end of the sweep.
_LITTLES = 2
_REPEATS = 3
#: A call that takes longer is not repeated, and larger ones are not tried.
_LONG_SECONDS = 2.0
_SHORT_SECONDS = 0.2


@dataclass(slots=True)
class BatchCosts:
    """What the sweep measured."""

    stage: str
    seconds: dict[int, float] = field(default_factory=dict)
    """{batch size: seconds of a call, median}."""
    peak_bytes: dict[int, float] = field(default_factory=dict)
    """{batch size: most resident memory of the process during its calls}; empty where the kernel does not tell."""
    out_of_memory_at: int | None = None
    """The smallest batch for which there was no memory."""
    ended: str = ""
    """Why no larger batch was tried; empty if all were."""


#: {threads inside a call: {device stage: what its batches cost with them}}.
ThreadCosts: TypeAlias = Mapping[int, Mapping[str, BatchCosts]]


def sweep_batches(
    pipeline: Pipeline, plan: Plan, stage: str, source: FiniteSource, *, largest: int = LARGEST_BATCH
) -> BatchCosts:
    """Run the device stage with growing batches and return what they cost; nothing is delivered.

    Args:
        pipeline: What is done.
        plan: Resolved; the stage gets one worker and a queue of its own.
        stage: A device stage.
        source: Where the item comes from that every batch is made of.
        largest: Largest batch to try, >= 1.

    Raises:
        HeadraceError: If the pipeline cannot run.
    """
    costs = BatchCosts(stage)
    if plan.stages[stage].executor == "process":
        costs.ended = "its calls are made in another process, where they cannot be watched"
        return costs
    probe = _Probe(costs)
    items = SameItems(source)
    items.num_items = 1
    settings = [f'stages.{stage}.executor="thread"', f"stages.{stage}.workers=1", f"stages.{stage}.batch={largest}"]
    try:
        run(
            replace_parts(pipeline, items),
            plan.with_settings([*settings, "run.warm_up=true"]),
            instruments=[probe],
            measuring=Measuring(brakes=False),
        )
    except HeadraceError as error:
        if not is_out_of_memory(error):
            raise
        costs.out_of_memory_at = costs.out_of_memory_at or largest
    return costs


class _Probe:
    """Watches the calls of one stage."""

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, watched."""
        if stage != self._costs.stage:
            return call

        def watched(batch: Any) -> Any:
            size = len(batch)
            self._refuse(size)
            try:
                return call(batch) if size in self._costs.seconds else self._measure(call, batch, size)
            except Exception as error:
                if is_out_of_memory(error):
                    known = self._costs.out_of_memory_at
                    self._costs.out_of_memory_at = min(size, known or size)
                    self._costs.ended = f"there was no memory for a batch of {size}"
                raise

        return watched

    def _refuse(self, size: int) -> None:
        """Raise for a size that is not worth trying; warm-up ends with it."""
        if self._costs.seconds and size > max(self._costs.seconds):
            self._costs.ended = self._costs.ended or explain_stop(self._costs.seconds)
            if self._costs.ended:
                raise _Enough(self._costs.ended)

    def _measure(self, call: Callable[..., Any], batch: Any, size: int) -> Any:
        _forget_peak()
        times = []
        result = call(batch)  # pays for allocation
        for _ in range(_REPEATS):
            began = time.monotonic()
            result = call(batch)
            times.append(time.monotonic() - began)
            if times[-1] > _SHORT_SECONDS:
                break
        self._costs.seconds[size] = statistics.median(times)
        peak = peak_bytes()
        if peak is not None:
            self._costs.peak_bytes[size] = peak
        return result


class _Enough(Exception):
    """Larger batches are not tried."""


def explain_stop(seconds: Mapping[int, float]) -> str:
    """Return why no larger batch need be tried; empty if one should.

    Args:
        seconds: {batch size: seconds per call} so far, > 0.
    """
    sizes = sorted(seconds)
    if seconds[sizes[-1]] > _LONG_SECONDS:
        return f"a call with {sizes[-1]} items takes {seconds[sizes[-1]]:.1f} s"
    rates = [size / seconds[size] for size in sizes]
    gains = [after / max(rates[:number]) - 1 for number, after in enumerate(rates[1:], 1)]
    if len(gains) >= _LITTLES and all(gain < _LITTLE for gain in gains[-_LITTLES:]):
        return f"batches beyond {sizes[-1 - _LITTLES]} gained less than {_LITTLE:.0%} at each doubling"
    return ""


def sweet_spot(throughput: Mapping[int, float], share: float = SWEET_SHARE) -> int | None:
    """Return the smallest batch with most of what batching gains; None without any.

    Args:
        throughput: {batch size: items per second}.
        share: How much of the gain of the best over the smallest batch is enough, 0 to 1.
    """
    if not throughput:
        return None
    smallest = throughput[min(throughput)]
    best = max(throughput.values())
    return min(size for size, rate in throughput.items() if rate >= smallest + share * (best - smallest))


def sweep_points(costs: BatchCosts, predicted: Mapping[int, tuple[float, float | None]]) -> tuple[SweepPoint, ...]:
    """Return the document's points: the pipeline's throughput where it was predicted, else the device's alone.

    Args:
        costs: As measured.
        predicted: {batch size: (jobs per second, seconds of latency or None)} of the whole pipeline.
    """
    rates = {size: predicted[size][0] if size in predicted else size / s for size, s in costs.seconds.items()}
    sweet = sweet_spot(rates)
    base = costs.peak_bytes.get(min(costs.peak_bytes, default=0))
    points = [
        SweepPoint(
            batch=size,
            throughput=rates[size],
            latency_p50=predicted[size][1] if size in predicted else costs.seconds[size],
            memory_bytes=None if base is None or size not in costs.peak_bytes else costs.peak_bytes[size] - base,
            source="predicted" if size in predicted else "measured",
            is_sweet_spot=size == sweet,
        )
        for size in sorted(rates)
    ]
    if costs.out_of_memory_at is not None:
        points.append(
            SweepPoint(
                batch=costs.out_of_memory_at,
                throughput=None,
                latency_p50=None,
                memory_bytes=None,
                source="out of memory",
            )
        )
    return tuple(points)


def slowdowns_by_threads(costs: ThreadCosts, stage: str, base: int) -> dict[int, dict[int, float]]:
    """Return {threads: {batch size: how many times as long a stage's call takes as with those of the base}}."""
    before = costs[base][stage].seconds if base in costs else {}
    return {
        threads: {size: seconds / before[size] for size, seconds in swept[stage].seconds.items() if size in before}
        for threads, swept in costs.items()
    }


def scale_to_run(seconds: Mapping[int, float], in_run: Mapping[int, float]) -> dict[int, float]:
    """Return costs brought to the level of a run, in which the device shared the machine with the other stages.

    Args:
        seconds: {batch size: seconds per call}, measured alone.
        in_run: {batch size: seconds per call} of the run, for the sizes that it saw.
    """
    common = sorted(seconds.keys() & in_run.keys())
    if not common:
        return dict(seconds)
    factor = statistics.median(in_run[size] / seconds[size] for size in common)
    return {size: in_run.get(size, value * factor) for size, value in seconds.items()}


def device_stages(stages: Sequence[Any]) -> list[str]:
    """Return the names of the stages that take batches."""
    return [stage.name for stage in stages if stage.kind == "device"]


def _forget_peak() -> None:
    """Reset the kernel's peak of resident memory; without the right to, the highest so far stays."""
    try:
        with open(f"/proc/{os.getpid()}/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return


def peak_bytes() -> float | None:
    """Return the most resident memory that this process had, in bytes; None where the kernel does not tell."""
    try:
        with open(f"/proc/{os.getpid()}/status") as file:
            line = next((line for line in file if line.startswith("VmHWM:")), "")
    except OSError:
        return None
    return float(line.split()[1]) * 1024 if line else None
