"""Faults of the machine around a pipeline: other programs on its cores, a quota of CPU time."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from benchmarks.faults.outside import busy_programs
from benchmarks.faults.shapes import SHAPES
from headrace.pipeline.thread_budget import usable_cores

_CGROUP = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000


def _neighbours(case: Case, dose: float) -> Case:
    return case.with_beside(functools.partial(busy_programs, max(1, round(usable_cores() * dose / 2))))


def _quota(case: Case, dose: float) -> Case:
    return case.with_beside(functools.partial(cpu_quota, usable_cores() / dose))


@contextlib.contextmanager
def cpu_quota(cores: float) -> Iterator[None]:
    """Allow this process so many cores' worth of CPU time per 100 ms, by a control group of its own.

    Raises:
        OSError: If this machine does not let us make one.
    """
    home = _home()
    if home is None:
        raise OSError(f"no control group with a CPU quota may be made below {_CGROUP} on this machine")
    group = home / f"headrace-{os.getpid()}"
    group.mkdir()
    try:
        microseconds = round(cores * _PERIOD_MICROSECONDS)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{microseconds} {_PERIOD_MICROSECONDS}")
        else:
            (group / "cpu.cfs_period_us").write_text(f"{_PERIOD_MICROSECONDS}")
            (group / "cpu.cfs_quota_us").write_text(f"{microseconds}")
        (group / "cgroup.procs").write_text(f"{os.getpid()}")
        try:
            yield
        finally:
            _move_all(group, home)
    finally:
        group.rmdir()


def _move_all(group: Path, to: Path) -> None:
    """Move every process of a group to another: also what this one has started and not ended."""
    for process in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (to / "cgroup.procs").write_text(process)


def _home() -> Path | None:
    """Return the group of this process below which another with a CPU quota may be made; version 2 or 1."""
    for line in _membership():
        _, controllers, path = line.split(":", 2)
        mount = _CGROUP if not controllers else _CGROUP / "cpu" if "cpu" in controllers.split(",") else None
        if mount is None:
            continue
        home = mount / path.strip("/")
        subtree = home / "cgroup.subtree_control"
        has_cpu = "cpu" in subtree.read_text().split() if subtree.exists() else (home / "cpu.cfs_quota_us").exists()
        if has_cpu and os.access(home, os.W_OK):
            return home
    return None


def _membership() -> list[str]:
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []


FAULTS = (
    Fault(
        id="F13",
        title="other programs keep the cores busy",
        dose="busy programs, from half as many as there are cores",
        applies_to=tuple(SHAPES),
        inject=_neighbours,
    ),
    Fault(
        id="F14",
        title="a control group allows less CPU time than there are cores",
        dose="how many times less than all cores",
        applies_to=tuple(SHAPES),
        inject=_quota if _home() is not None else None,
        needs="" if _home() is not None else "a control group with a CPU quota that this user may make",
    ),
)
