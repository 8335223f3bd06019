"""Reads what a thread cost: wall time, CPU time and run-queue delay, for about a microsecond a reading.

How this works: a worker reads at each stage's boundary. CPU time is one system call (`thread_time_ns`). The run-queue delay
stands in `/proc/self/task/TID/schedstat`, and reading it costs as much as all the rest; so it is read only where, since it was
read last, wall time ran ahead of CPU time by more than `GAP_NS` and one 128th of the time since the last reading: a thread that
lost no time has no delay either. So a delay is too small by at most 5 us and 0.8 % of its span, and it does not add up: of a
delay that is read later, no more is told than wall time ran ahead of CPU time since the reading before, or what a long phase
left out would stand in the short one behind it, which cannot hold it. The file is read through `ctypes.PyDLL`, which keeps the
GIL: `os.pread` lets go of it, and a thread that others wait for would lose it at every reading.

`Metering` is the switch that all workers of a run share: whether they read at all, and which jobs are recorded. Above a stated
rate whole jobs are left out, by a hash of their ids, so that all stages and processes agree; counters stay exact.

`process_cpu_seconds` and `thread_cpu_seconds` read the clocks of others: nanoseconds, half a microsecond a reading, no file.

References:
    Linux kernel, include/linux/posix-timers_types.h: the clock of process p is (~p << 3) | 2, of thread t (~t << 3) | 6;
    Documentation/scheduler/sched-stats.rst: `/proc/<pid>/schedstat`, second field: nanoseconds on a run queue.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from headrace.base.own_files import close_own, identify

#: Wall time without CPU time, ns, that makes it worth asking the kernel for the run-queue delay; and that share of the time
#: since the last reading, as a shift: timer ticks alone take that much.
GAP_NS = 5_000
_GAP_SHIFT = 7

#: Readings of all clocks within this time, ns, belong together; undisturbed it takes about 3 us.
_QUICK_NS = 20_000
_TRIES = 4

#: Three numbers of at most 20 digits.
_MAX_BYTES = 64
_NOT_COUNTED = b"0 0 0\n"

#: A reading: wall clock, CPU time of the thread, its run-queue delay; ns, None where not read. Only differences within a thread
#: mean anything.
Reading = tuple[int, int | None, int | None]


def process_cpu_seconds(process: int) -> float | None:
    """Return the CPU time that a process has used so far, with its threads that ended; None if there is no such process."""
    return _read_cpu_clock((~process << 3) | 2)


def thread_cpu_seconds(thread_id: int) -> float | None:
    """Return the CPU time of one thread of this process; None if there is no such thread."""
    return _read_cpu_clock((~thread_id << 3) | 6)


def _read_cpu_clock(clock: int) -> float | None:
    try:
        return time.clock_gettime_ns(clock) / 1e9
    except OSError:
        return None


class Metering:
    """Whether and for which jobs workers read their clocks.

    Attributes:
        on: Whether CPU time and run-queue delay are read.
        every: One job in so many is recorded; 1 for all, a power of two.
    """

    __slots__ = ("every", "on")

    def __init__(self, *, on: bool = False, every: int = 1) -> None:
        self.on = on
        self.every = every

    def weight(self, job_id: str) -> int:
        """Return how many jobs this one stands for; 0 if it is not recorded."""
        if self.every == 1:
            return 1
        return 0 if zlib.crc32(job_id.encode("utf-8", "surrogatepass")) % self.every else self.every


class ThreadMeter:
    """Reads the clocks of the thread that calls it; opened by the first reading, which must come from that thread.

    Args:
        now_ns: The run's clock.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._file = -1
        self._identity = (0, 0)
        self._ahead = 0  # wall minus CPU time when the delay was read last
        self._last_ahead = 0  # the same at the last reading
        self._last = 0  # wall time of the last reading
        self._counted: int | None = None  # by the kernel
        self._run_delay: int | None = None  # what is told
        self._thread = 0
        self._pread: Any = None
        self._buffer: Any = None
        self._arguments: tuple[Any, ...] = ()

    def read(self) -> Reading:
        """Return wall time, CPU time and run-queue delay, ns; the delay is None where the kernel does not tell it."""
        wall = self._now_ns()
        cpu = time.thread_time_ns()
        ahead = wall - cpu
        if ahead - self._ahead > GAP_NS + (wall - self._last >> _GAP_SHIFT):
            wall, cpu = self._read_all(wall, cpu)
            ahead = self._ahead = wall - cpu
        self._last, self._last_ahead = wall, ahead
        return wall, cpu, self._run_delay

    def close(self) -> None:
        """Close the kernel's file; a later reading opens it again."""
        file, self._file, self._thread = self._file, -1, 0
        if file >= 0:
            close_own(file, self._identity)

    def __del__(self) -> None:
        self.close()

    def _read_all(self, wall: int, cpu: int) -> tuple[int, int]:
        thread, counted = self._thread, self._counted
        # Who loses the core between the clocks would have a delay that lies in no wall time: then all are read again.
        for _ in range(_TRIES):
            self.read_run_delay()
            now = self._now_ns()
            if now - wall < _QUICK_NS:
                break
            wall, cpu = now, time.thread_time_ns()
        if thread != self._thread or self._counted is None or counted is None or self._run_delay is None:
            self._run_delay = self._counted
        else:
            self._run_delay += min(self._counted - counted, max(0, wall - cpu - self._last_ahead))
        return wall, cpu

    def read_run_delay(self) -> None:
        """Ask the kernel for the run-queue delay of this thread."""
        thread = threading.get_native_id()  # an id of `get_ident` is given again to a later thread
        if thread != self._thread:
            self.close()
            self._thread = thread
            self._file = self._open()
        if self._file < 0:
            return
        try:
            if self._pread(*self._arguments) <= 0:
                raise ValueError
            # "1234567 8910 11\n": on the CPU, runnable but not on it, times that it got it. They only grow, so that nothing
            # of an earlier line is left behind this one.
            line = self._buffer.value
            delay = int(line.split(b" ", 2)[1])
        except (ValueError, IndexError):  # the program closed our file, and may have given its number to another one
            self._file, self._thread, self._counted = -1, 0, None  # opened again by the next reading
        else:
            # A kernel that does not count says 0 three times (CONFIG_TASK_DELAY_ACCT without delayacct, no CONFIG_SCHEDSTATS):
            # that is not measured, not no delay.
            self._counted = delay if delay or line != _NOT_COUNTED else None

    def _open(self) -> int:
        import ctypes  # not needed by who does not measure

        try:
            path = f"/proc/self/task/{self._thread}/schedstat"
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._identity = identify(file)
        except OSError:
            return -1
        self._pread = ctypes.PyDLL(None).pread
        self._buffer = ctypes.create_string_buffer(_MAX_BYTES)
        # Made once: converting them at each call would cost a third more.
        self._arguments = (
            ctypes.c_int(file),
            ctypes.byref(self._buffer),
            ctypes.c_size_t(_MAX_BYTES),
            ctypes.c_int64(0),
        )
        return file
