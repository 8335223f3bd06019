"""How much of the machine's cores this process and its children used, and how much all programs together. Linux only."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PROC = Path("/proc")
#: Columns of the first line of /proc/stat in which a core works: user, nice, system, irq, softirq.
_WORKS = (1, 2, 3, 6, 7)


class MachineUse:
    """Counts from its making on; loader workers are children, and are counted while they live and once they are waited for."""

    def __init__(self) -> None:
        self._began = _read()

    def describe(self) -> dict[str, float]:
        """Return seconds of cores since then: `all` programs, `own` process and children; empty where nothing tells."""
        ended = _read()
        if self._began is None or ended is None:
            return {}
        wall, everybody, own = (max(end - begin, 0.0) for begin, end in zip(self._began, ended, strict=True))
        return {"wall_seconds": wall, "all_seconds": everybody, "own_seconds": own}


def _read() -> tuple[float, float, float] | None:
    """Return seconds: the clock, cores that worked, and those that worked for this process."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        columns = (_PROC / "stat").read_text().split("\n", 1)[0].split()
        everybody = sum(int(columns[one]) for one in _WORKS) / ticks
    except (OSError, ValueError, IndexError):
        return None
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return time.monotonic(), everybody, own + sum(map(_ticks_of, _children())) / ticks


def _children() -> list[int]:
    """Return the processes that threads of this one have started and that live."""
    found = []
    for thread in threading.enumerate():
        try:
            listed = (_PROC / f"self/task/{thread.native_id}/children").read_text()
        except OSError:  # the thread has ended, or the kernel lists none
            continue
        found += [int(one) for one in listed.split()]
    return found


def _ticks_of(process: int) -> int:
    """Return ticks of a process and of its children that ended; 0 if it has ended."""
    try:
        fields = (_PROC / f"{process}/stat").read_text().rpartition(")")[2].split()
        return sum(int(one) for one in fields[11:15])
    except (OSError, ValueError):
        return 0
