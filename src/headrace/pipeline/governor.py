"""One governor for threads: how many cores this process may use, who gets how many threads, and whether they add up.

Every numeric library starts a thread per core of the machine unless told otherwise; several of them in one process then
fight for the cores that a container really has. headrace sets each of them from one count.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.base.plan import Plan, StageDefaults

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return how many cores this process may use, >= 1: the smaller of its affinity and its CPU quota, rounded down.

    Args:
        cgroup: Where the control groups are mounted (v1 or v2).

    References:
        Linux kernel documentation: cgroup-v2 `cpu.max`; cgroup-v1 `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def _quota(cgroup: Path) -> float | None:
    quotas = [_quota_v2(folder) for folder in _own_groups_v2(cgroup)]
    quotas.append(_quota_v1(cgroup / "cpu"))
    known = [quota for quota in quotas if quota is not None]
    return min(known) if known else None


def _own_groups_v2(cgroup: Path) -> list[Path]:
    # A quota may sit on any group from ours up to the root.
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [cgroup]
    own = next((line.split("::", 1)[1] for line in lines if line.startswith("0::")), "/")
    folder = cgroup / own.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(cgroup))]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


@dataclass(frozen=True, slots=True)
class ThreadBudget:
    """Who computes with how many threads."""

    cores: int
    model_threads: Mapping[str, int]
    """Threads inside one call of the model, by device stage."""
    demand: Mapping[str, int]
    """Threads that may compute at once, by stage."""
    warnings: tuple[str, ...]
    """What adds up to more than there is, and what to do."""


def budget(plan: Plan, stages: list[StageDefaults], cores: int) -> ThreadBudget:
    """Return the thread budget of a resolved Plan.

    Args:
        plan: Resolved.
        stages: The pipeline's stages, in order.
        cores: See `usable_cores`.
    """
    model_threads: dict[str, int] = {}
    demand: dict[str, int] = {}
    head = ""
    for stage in stages:
        settings = plan.stages[stage.name]
        if settings.executor != "inline" or not head:
            head = stage.name
        workers = plan.stages[head].workers or 1
        if plan.stages[head].executor == "inline":
            workers = plan.source.receivers
        if stage.kind == "device":
            model = plan.models.get(stage.task, plan.model)
            model_threads[stage.name] = model.threads or max(1, cores // workers)
            if model.engine != "emulated":
                demand[head] = max(demand.get(head, 0), workers * model_threads[stage.name])
        elif stage.kind == "cpu" and stage.computes:
            demand[head] = max(demand.get(head, 0), workers)
    warnings = []
    for name, threads in demand.items():
        if threads > cores:
            warnings.append(
                f"stage {name} may compute with {threads} threads at once, but this process may use {cores} "
                f"core{'s' if cores > 1 else ''}: lower {name}.workers or model.threads"
            )
    return ThreadBudget(cores, model_threads, demand, tuple(warnings))


def limit_library_threads() -> None:
    """Make OpenCV and OpenMP compute in the thread that calls them: the pipeline's workers are the parallelism.

    OpenMP reads its variable when a library that uses it is first loaded; later it has no effect.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import cv2  # imported here: a pipeline without images never loads it

    cv2.setNumThreads(1)


#: Objects made before the collector looks again, and how many looks at the young go before one at the older.
_GC_THRESHOLDS = (50_000, 20, 100)


@contextlib.contextmanager
def calm_garbage_collector() -> Iterator[None]:
    """Let Python's cyclic collector run rarely, and over what is made from now on only.

    A full collection walks every object of every imported library while it holds the GIL: tens of milliseconds, in which a
    device that has finished waits for its next batch. Items are freed by reference count; cycles in users' code are still
    collected, later. The settings of before are restored at the end.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
