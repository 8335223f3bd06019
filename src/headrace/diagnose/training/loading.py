"""What loading a batch costs where it is done, and how busy the loader's workers are."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.training.headroom import find_headroom
from headrace.diagnose.training.steps import Array, RankSteps, Times
from headrace.runs.formats.training import TrainingProcess
from headrace.runs.formats.training_profile import LoadingProfile, LoadingWork
from headrace.runs.training_phases import LoaderWork

#: Parts of `ITEMS`: taken off it, so that the work adds up.
_OF_ITEMS = (LoaderWork.READ, LoaderWork.DECODE, LoaderWork.AUGMENT, LoaderWork.TOKENISE)
#: Not shown: a batch that was ready and waited is no work, and opening belongs to the items.
_NO_WORK = frozenset({LoaderWork.SEND, LoaderWork.OPEN})


def loading_profile(
    rank: RankSteps, plain: Array, about: TrainingProcess | None, num_cores: float
) -> LoadingProfile | None:
    """Return what the batches of plain steps cost; None where that was not recorded.

    Args:
        rank: One process.
        plain: Which of its steps count.
        about: What it said of its loaders.
        num_cores: Cores that it and its workers have.
    """
    batches = rank.batches
    used = np.isin(batches.step, rank.steps.number[plain])
    total = _total(batches.work, len(batches))[used]
    if not len(total) or not plain.any():
        return None
    workers = max((one.workers for one in about.loaders), default=0) if about is not None else _num_processes(rank)
    # Of short steps without workers only some say what loading cost: those stand for the others.
    per_step = len(total) / len(np.unique(batches.step[used]))
    step = float(rank.steps.wall[plain].mean())
    headroom = find_headroom(rank, num_workers=workers, num_cores=num_cores, counted=plain)
    return LoadingProfile(
        workers=workers,
        batches=len(total),
        batches_per_step=per_step,
        seconds=float(total.mean()),
        median_seconds=float(np.median(total)),
        p95_seconds=float(np.percentile(total, 95)),
        # Above 1 where turns of epochs, which are in no plain step, gave workers time to load ahead.
        busy_share=min(float(total.mean()) * per_step / (workers * step), 1.0) if workers and step else None,
        work=_work(batches.work, used),
        headroom=headroom.ratio if headroom is not None and np.isfinite(headroom.ratio) else None,
    )


def _num_processes(rank: RankSteps) -> int:
    """Return how many processes loaded, other than the one that trains."""
    return int((np.unique(rank.batches.process) != rank.process).sum())


def _total(work: dict[LoaderWork, Times], count: int) -> Array:
    total = np.zeros(count)
    for name in (LoaderWork.ITEMS, LoaderWork.COLLATE):
        if name in work:
            total += work[name].wall
    return total


def _work(work: dict[LoaderWork, Times], used: Array) -> tuple[LoadingWork, ...]:
    found = []
    for name, times in work.items():
        if name in _NO_WORK:
            continue
        values = [times.wall[used], times.cpu[used], times.run_delay[used]]
        if name is LoaderWork.ITEMS:
            for part in (work[one] for one in _OF_ITEMS if one in work):
                own = (part.wall[used], part.cpu[used], part.run_delay[used])
                values = [whole - np.nan_to_num(some) for whole, some in zip(values, own, strict=True)]
        found.append(_one(name, *values))
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _one(name: LoaderWork, wall: Array, cpu: Array, run_delay: Array) -> LoadingWork:
    seconds = max(float(wall.mean()), 0.0)
    known = [float(one.mean()) if np.isfinite(one).all() else None for one in (cpu, run_delay)]
    blocked = None if None in known else max(seconds - sum(one or 0.0 for one in known), 0.0)
    return LoadingWork(
        work=name, seconds=seconds, cpu_seconds=known[0], run_delay_seconds=known[1], blocked_seconds=blocked
    )
