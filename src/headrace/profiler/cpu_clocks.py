"""CPU time of this process's threads by what they do, and of the worker processes; read from the kernel's clocks.

Linux gives every thread and process a CPU clock that others may read (`base.metering`).
"""

from __future__ import annotations

import re
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.base.metering import process_cpu_seconds, thread_cpu_seconds
from headrace.pipeline.worker import RECEIVER, WorkerThread

WORKERS = "workers"
PROCESSES = "worker processes"
RECEIVING = "receiving"
FINISHING = "finishing batches"
DECODING = "decoding frames"
OTHER = "other Python threads"
WRITING = "writing results"

#: Roles of headrace's own threads, by their names.
_ROLES = {
    "MainThread": "main thread",
    "heartbeat": "heartbeats",
    "bookkeeper": "making spans",
    "flusher": WRITING,
    "headrace-span-writer": "writing spans",
    "headrace-live-view": "progress view",
    "headrace-profiler": "profiling",
    "headrace-profiler-backlog": "profiling",
}
_FINISHER = "-finisher"


class CpuClocks:
    """Adds up CPU time by role since it was made. `read` often: what a thread or process did after the last look is lost.

    Args:
        workers: Where the stages run now. What their processes used before, to start and to open the stages, does not count;
            what one uses for that which takes the place of one that died, does.
    """

    def __init__(self, workers: Sequence[WorkerThread] = ()) -> None:
        self._roles: dict[int, str] = {}
        self._last: dict[int, float] = {}
        self._began = self._ended = 0.0
        self._switches_began = self._switches = (0, 0)
        self.read(workers)
        self._began, self._switches_began = self._ended, self._switches
        self._first = dict(self._last)

    def read(self, workers: Sequence[WorkerThread], ended: Mapping[int, float] | None = None) -> None:
        """Look at all clocks.

        Args:
            workers: Where the stages run now.
            ended: {kernel's number: CPU seconds} of threads that noted them when they ended; of others' threads nothing.
        """
        # A worker whose stages run in a process of its own is also a thread here, which waits for that.
        here = {place.thread_id for place in workers} | {place.name for place in workers}
        for thread in threading.enumerate():
            number = thread.native_id
            if number is not None and (seconds := thread_cpu_seconds(number)) is not None:
                self._roles[number] = _role(thread.name, number in here or thread.name in here)
                self._last[number] = seconds
        for process in {place.process for place in workers if place.process == place.thread_id}:
            if (seconds := process_cpu_seconds(process)) is not None:
                self._roles[process] = PROCESSES
                self._last[process] = seconds
        for number, seconds in (ended or {}).items():
            if number in self._last:
                self._last[number] = seconds
        self._ended = time.process_time()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._switches = usage.ru_nvcsw, usage.ru_nivcsw

    def sum_by_role(self, flushes: Mapping[int, float] | None = None) -> dict[str, float]:
        """Return {role: CPU seconds} up to the last look.

        Args:
            flushes: {kernel's number: CPU seconds} of writing results down in threads whose role is another.
        """
        total: defaultdict[str, float] = defaultdict(float)
        for number, seconds in self._last.items():
            used = seconds - self._first.get(number, 0.0)
            writing = min(used, (flushes or {}).get(number, 0.0))
            total[self._roles[number]] += used - writing
            if writing:
                total[WRITING] += writing
        return dict(total)

    def total(self) -> float:
        """Return the CPU seconds of this process and the worker processes up to the last look."""
        return self._ended - self._began + self.sum_by_role().get(PROCESSES, 0.0)

    def count_switches(self) -> tuple[int, int]:
        """Return how often this process's threads went to sleep, and how often they lost their core, up to the last look."""
        (asleep, lost), (asleep_before, lost_before) = self._switches, self._switches_began
        return asleep - asleep_before, lost - lost_before

    def native(self) -> float:
        """Return the CPU seconds of threads of this process that Python does not know: pools of models and libraries."""
        python = sum(seconds for role, seconds in self.sum_by_role().items() if role != PROCESSES)
        return max(0.0, self._ended - self._began - python)


def _role(name: str, is_worker: bool) -> str:
    if is_worker:  # a receiver too, where it runs the first stages itself
        return WORKERS
    if name.endswith(_FINISHER):
        return FINISHING
    if re.match(r"video\b", name):  # of files, and `video-NAME` of a live stream
        return DECODING
    return RECEIVING if re.fullmatch(rf"{RECEIVER}-\d+", name) else _ROLES.get(name, OTHER)
