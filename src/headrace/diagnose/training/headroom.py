"""How much faster the model may become before loading limits the training.

A wait of 0 hides the workers: they may be at 99 %. So the time that a batch takes the model is compared with the time at which
the loader could give the next one. Two limits are computed, and the nearer one counts:

- **Workers**: W workers that each need c seconds for a batch give one every c / W. c is what the batch computed and was blocked
  for in its worker (items and collating); it holds no wait for a core. Another thread of the worker sends it, which costs time
  only where the worker does not sleep or read meanwhile.
- **Cores**: all CPU time has to fit on the cores. A model that becomes x times faster is taken to need x times less CPU time;
  what loading computes stays.

The time of the model is that of plain steps without the wait for batches and without waiting for a core, over its batches.
Costs and times are means: what a loader gives over time depends on the mean, not on the median.

Not in here: batches of uneven cost, of which one can hold up the others (`head_of_line`), the disk or network that workers
share, and memory bandwidth.

References:
    Denning and Buzen, 1978: the asymptotic bounds of operational analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.diagnose.training.steps import Array, LoadedBatches, RankSteps
from headrace.runs.training_phases import LoaderWork, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """How much faster the model may become before loading limits; seconds are means for one batch."""

    ratio: float
    """The smaller of the two below. Below 1 loading limits already."""
    ratio_by_workers: float
    ratio_by_cores: float
    """Infinite if loading computes nothing; 0 if the model alone needs more than all cores."""
    num_workers: int
    model_seconds: float
    """A step without waiting for batches or for a core, over its batches."""
    model_cpu_seconds: float
    """Of it, computed by the training thread; threads of operators are not in it."""
    batch_seconds: float
    """What a batch takes a worker that always has a core."""
    batch_cpu_seconds: float


def find_headroom(
    rank: RankSteps, *, num_workers: int, num_cores: float, counted: Array | None = None
) -> Headroom | None:
    """Return the headroom of one process that trains.

    Args:
        rank: Its steps and batches.
        num_workers: Loader processes.
        num_cores: Cores that the training and its workers share; fewer if other ranks share them too.
        counted: bool, which steps count; None: plain ones.

    Returns:
        None without workers, as loading and the model then never overlap, and where nothing that counts was recorded.

    Raises:
        ValueError: If `num_cores` is not positive.
    """
    if num_cores <= 0:
        raise ValueError(f"num_cores = {num_cores}: a number above 0 is needed, such as num_cores of run.json")
    steps = rank.steps.is_plain if counted is None else counted
    used = np.isin(rank.batches.step, rank.steps.number[steps])
    if num_workers < 1 or not used.any():
        return None
    num_batches = int(used.sum())
    model, model_cpu = (seconds / num_batches for seconds in _model_seconds(rank, steps))
    busy, cpu = (float(one[used].mean()) for one in _batch_seconds(rank.batches))
    by_workers = _ratio(model * num_workers, busy)
    by_cores = _ratio(model * num_cores - model_cpu, cpu)
    return Headroom(
        ratio=min(by_workers, by_cores),
        ratio_by_workers=by_workers,
        ratio_by_cores=by_cores,
        num_workers=num_workers,
        model_seconds=model,
        model_cpu_seconds=model_cpu,
        batch_seconds=busy,
        batch_cpu_seconds=cpu,
    )


def _ratio(most: float, needed: float) -> float:
    return max(most, 0.0) / needed if needed > 0 else np.inf


def _model_seconds(rank: RankSteps, steps: Array) -> tuple[float, float]:
    """Return seconds of all phases but the wait, and the CPU time in them, summed over the steps."""
    wall = cpu = 0.0
    for phase, times in rank.steps.phases.items():
        if phase is not Phase.WAIT:
            wall += float((times.wall - np.nan_to_num(times.run_delay))[steps].sum())
            cpu += float(np.nan_to_num(times.cpu)[steps].sum())
    return wall, cpu


def _batch_seconds(batches: LoadedBatches) -> tuple[Array, Array]:
    """Return for each batch what it takes a worker that has a core, and the CPU time of it."""
    busy, cpu, blocked = (np.zeros(len(batches)) for _ in range(3))
    for work in (LoaderWork.ITEMS, LoaderWork.COLLATE):
        if work in batches.work:
            times = batches.work[work]
            busy += times.wall - np.nan_to_num(times.run_delay)
            cpu += np.nan_to_num(times.cpu)
            blocked += np.nan_to_num(times.blocked)
    if LoaderWork.SEND in batches.work:
        sending = np.nan_to_num(batches.work[LoaderWork.SEND].cpu)
        busy, cpu = busy + np.maximum(sending - blocked, 0.0), cpu + sending
    return busy, cpu
