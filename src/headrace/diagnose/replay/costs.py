"""What a batch costs a device, by its size: measured at warm-up and in the run, kept with its steps and plateaus.

Between two measured sizes the cost is read off the straight line between them; beyond the largest nothing is known, and
nothing is made up (a decaying matrix product was measured at 3 ms for 4 and at 186 ms for 8 items: denormals).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.plan import ModelPlan
from headrace.base.units import parse_duration
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.replay.demands import CannotReplay, StageDemands
from headrace.diagnose.span_columns import Array

#: How far warm-up and run may be apart to be of one kind.
_MOST_APART = 3.0
#: Sizes at which an emulated device's line is written down.
_EMULATED_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Batches of one size from which on their mean is better than what warm-up measured once or thrice.
_ENOUGH_BATCHES = 8


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Seconds of one call by batch size."""

    sizes: Array
    """Measured, growing, >= 1."""
    seconds: Array
    cpu_share: float
    """Of those seconds: how much is CPU time; the rest is waiting for the device."""
    left_out: str = ""
    """Why larger sizes, which warm-up measured, are not among these; empty where none were left out."""

    @property
    def largest(self) -> int:
        """The largest size that was measured."""
        return int(self.sizes[-1])

    def at(self, size: int) -> float:
        """Return seconds of a batch; between measured sizes by the straight line between them.

        Beyond the largest an item costs as much as within it. That is for batches that the recorded Plan allowed and the run
        never made: without a number for them the run could not be replayed at all. What-ifs are kept from there by `check`.
        """
        return float(np.interp(size, self.sizes, self.seconds)) * max(1.0, size / self.largest)

    def check(self, stage: str, size: int) -> None:
        """Raise CannotReplay if a batch of this size is beyond what was measured."""
        if size > self.largest:
            raise CannotReplay(
                f"a batch of {size} is beyond what was measured of stage {stage} (up to {self.largest}), and what larger ones "
                f"cost is not known{self.left_out}; measure it: headrace profile ... --set {stage}.batch={size}"
            )

    def line(self) -> tuple[float, float]:
        """Return a and b of a + b*n, the least-squares line through the measured sizes; a of one size is 0."""
        if len(self.sizes) < 2:
            return 0.0, float(self.seconds[0] / self.sizes[0])
        slope, start = np.polyfit(self.sizes, self.seconds, 1)
        return float(start), float(slope)


@dataclass(frozen=True, slots=True)
class Spread:
    """How calls of a model were spread over threads of its own, which no span measures."""

    threads: int
    """That the Plan gave it, >= 1."""
    busy: float
    """Cores that a call kept busy on an average, from 1 to `threads`."""
    is_measured: bool = True
    """`busy` comes from CPU time; else all threads are taken to have worked all the time."""

    def at(self, threads: int) -> float:
        """Return the cores that a call keeps busy with so many threads; evenly spread where one thread was all there was."""
        each = (self.busy - 1.0) / (self.threads - 1) if self.threads > 1 else 1.0
        return 1.0 + each * (threads - 1)


def batch_cost(evidence: Evidence, demands: StageDemands, model: ModelPlan) -> BatchCost:
    """Return the cost curve of a device stage that runs this model.

    In-run batches count where there are enough of a size; sizes that only warm-up measured are scaled to them, because the
    rest of the pipeline was not yet at work then.
    """
    stage = demands.name
    in_run = _in_run(evidence, demands)
    cpu_share = _cpu_share(demands)
    exact = read_emulated_seconds(model.options) if demands.is_emulated else None
    warm = _warm_up(evidence, demands, cpu_share)
    common = [size for size in in_run if size in warm]
    scale = float(np.median([in_run[size] / warm[size] for size in common])) if common else 1.0
    left_out = ""
    if not 1 / _MOST_APART < scale < _MOST_APART:
        left_out = (
            f": warm-up measured up to {max(warm)}, but calls of one size took x{scale:.2g} of that in the run, so that it "
            "says nothing of the run"
        )
        warm = {}  # first calls, or a machine that was busy with something else: they say nothing of the run
    if not warm and demands.info.kind == "device" and len(in_run) == 0:
        raise CannotReplay(f"no batch of stage {stage} was measured")
    curve = {size: seconds * scale for size, seconds in warm.items()} | in_run
    if exact is not None:
        # A module may call its device more than once for a batch.
        times = float(np.median([seconds / exact(size) for size, seconds in in_run.items()]))
        curve = {size: times * exact(size) for size in _EMULATED_SIZES}
    sizes = np.array(sorted(curve), float)
    return BatchCost(sizes, np.array([curve[int(size)] for size in sizes]), cpu_share, left_out)


def make_given_cost(curve: Mapping[int, float], cpu_share: float) -> BatchCost:
    """Return a curve that was measured elsewhere.

    Raises:
        ValueError: If it is empty, or a size or cost is not above 0.
    """
    if not curve or min(curve) < 1 or min(curve.values()) <= 0:
        raise ValueError(f"expected a cost curve {{batch size >= 1: seconds > 0}}, got {dict(curve)}")
    sizes = sorted(curve)
    return BatchCost(np.array(sizes, float), np.array([curve[size] for size in sizes], float), cpu_share)


def _in_run(evidence: Evidence, demands: StageDemands) -> dict[int, float]:
    """Return {size: mean seconds without what others did to it} of sizes with enough batches; else of the most frequent."""
    seconds = demands.cpu + demands.wait
    sizes = demands.batch_size.astype(int)
    found = {}
    for size in np.unique(sizes):
        own = seconds[sizes == size]
        if len(own) >= _ENOUGH_BATCHES * size:
            found[int(size)] = float(own.mean())
    if not found and len(sizes):
        size = int(np.bincount(sizes).argmax())
        found[size] = float(seconds[sizes == size].mean())
    return found


def _cpu_share(demands: StageDemands) -> float:
    total = float((demands.cpu + demands.wait).sum())
    return float(demands.cpu.sum()) / total if total > 0 else 1.0


def _warm_up(evidence: Evidence, demands: StageDemands, cpu_share: float) -> dict[int, float]:
    """Return {size: seconds} of warm-up: the fastest of the calls, since others may have held them up."""
    walls = evidence.info.cost_curves.get(demands.name, {})
    cpus = getattr(evidence.info, "cost_curve_cpu", {}).get(demands.name, {})
    found = {}
    for size, calls in walls.items():
        cpu = cpus.get(size)
        if cpu_share > 0.5 and cpu and min(cpu) > 0:
            found[int(size)] = min(cpu) / cpu_share  # its wall time holds what the rest of the pipeline did to it
        elif calls:
            found[int(size)] = min(calls)
    return found


def read_emulated_seconds(options: Mapping[str, Any]) -> Callable[[float], float]:
    """Return what an emulated device takes for a batch, from the Plan's `[model.options]`."""
    launch, item = (_seconds(options.get(key, 0.0)) for key in ("launch_seconds", "item_seconds"))
    return lambda size: max(1e-9, launch + item * size)


def _seconds(value: Any) -> float:
    """Return seconds as a Plan may have them: `0.004`, or `"4ms"`."""
    return parse_duration(value) if isinstance(value, str) else float(value)
