"""A clock that stands still while this thread waits for a core that somebody else uses.

So other programs on the machine change figures less. Helper threads of PyTorch wait too, and this thread then waits for them
on a core: that part stays.

References:
    Linux kernel, Documentation/scheduler/sched-stats.rst: `/proc/PID/task/TID/schedstat`, second field.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path


def read_clocks() -> tuple[float, float]:
    """Return seconds of the wall clock, and of waiting for a core (0 where the kernel does not count it)."""
    # Not with the profiler's reader: its folder loads Arrow, which would count as memory of the training.
    try:
        fields = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_bytes().split()
        return time.perf_counter(), int(fields[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return time.perf_counter(), 0.0
