"""Counts what a worker process takes of the machine."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from headrace.monitor.metrics.counts import Counts

_PAGE_BYTES = resource.getpagesize()


def look_at_process(counts: Counts, worker: tuple[str]) -> None:
    """Read CPU time, memory and open files of this process.

    Args:
        counts: Where.
        worker: The label of its slot.
    """
    counts.follow("headrace_process_cpu_seconds_total", time.process_time(), worker)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    counts.set("headrace_process_resident_memory_bytes", float(resident), worker)
    counts.set("headrace_process_open_fds", float(len(os.listdir("/proc/self/fd"))), worker)
