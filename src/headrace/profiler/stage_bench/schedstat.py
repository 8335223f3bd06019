"""What the kernel's scheduler counts for each thread: time on a core, and time runnable without one.

`base.metering` reads the same file of the calling thread; here threads of libraries and of other processes are read too.

References:
    Linux kernel, Documentation/scheduler/sched-stats.rst: `/proc/PID/task/TID/schedstat`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class TaskTimes(NamedTuple):
    """Nanoseconds since a thread began; only differences mean anything."""

    cpu_ns: int
    """On a core; of another thread that runs at this moment it may lag by a tick of the kernel, 1 to 10 ms."""
    run_delay_ns: int
    """Runnable, waiting for a core."""


def task_times(process: int, thread: int, proc: Path = _PROC) -> TaskTimes | None:
    """Return a thread's times by the kernel's ids; None if it has ended or the kernel does not tell."""
    try:
        fields = (proc / str(process) / "task" / str(thread) / "schedstat").read_bytes().split()
        if fields == [b"0", b"0", b"0"]:  # so says a kernel that does not count (delayacct is off)
            return None
        return TaskTimes(int(fields[0]), int(fields[1]))
    except (OSError, ValueError, IndexError):
        return None


def threads_of(process: int, proc: Path = _PROC) -> set[int]:
    """Return the kernel's ids of a process's threads; empty if it has ended."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir(proc / str(process) / "task")}
    return set()


def cpu_seconds_of(tasks: Iterable[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Return the CPU seconds of (process, thread) pairs; those that have ended are left out."""
    found = {task: task_times(*task) for task in tasks}
    return {task: times.cpu_ns / 1e9 for task, times in found.items() if times is not None}
