"""What the recorder reads each second beside the spans: machine, processes, queues, counters, thread states.

The same readers as the profiler's, in the run's process: one reading costs about two milliseconds, and a process of its own
would cost its memory for the whole life of a service.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from headrace.monitor.recorder.recording import Sample, States, Threads, keep_finite
from headrace.pipeline.watching import RunInProgress
from headrace.profiler.collector_clock import CollectorClock
from headrace.profiler.sampler.gil import GilNotFound, find_gil
from headrace.profiler.sampler.machine import MachineReader
from headrace.profiler.sampler.messages import ThreadPlace
from headrace.profiler.sampler.processes import Processes
from headrace.profiler.sampler.thread_states import ThreadStates
from headrace.runs.hardware import CpuQuota

#: Cores one by one and network cards without traffic would be half of what is written, and nothing is concluded from them.
_LEFT_OUT = "cpu"
_CGROUP = Path("/sys/fs/cgroup")


class Readings:
    """Reads resources and gauges; used by the recorder's thread.

    Args:
        run: What is recorded.
        root: Process whose descendants are the service: the supervisor, or this process.
    """

    def __init__(self, run: RunInProgress, root: int) -> None:
        self._run = run
        self._machine = MachineReader(os.getpid())
        self._processes = Processes(root, -1)
        self._quota = CpuQuota(_CGROUP)
        self._collector = CollectorClock()
        self.not_measured: dict[str, str] = {}

    def start(self) -> None:
        """Listen to the garbage collector from now on."""
        self._collector.start()

    def close(self) -> None:
        """Listen no more."""
        self._collector.stop()

    def sample(self) -> Sample:
        """Return everything at this moment."""
        at_ns = time.monotonic_ns()
        measured: dict[str, dict[str, float | None]] = {}
        for what, read in (("machine", self._read_machine), ("run", self._read_run)):
            try:
                measured |= read(at_ns / 1e9)
            except Exception as error:  # a file of the kernel that nobody has seen yet must not end the recording
                self.not_measured[what] = f"{type(error).__name__}: {error}"
        return Sample(at_ns, keep_finite(measured))

    def _read_machine(self, now: float) -> dict[str, dict[str, float | None]]:
        measured = {
            scope: values
            for scope, values in self._machine.sample(now).items()
            if not (scope.startswith(_LEFT_OUT) and scope[len(_LEFT_OUT) :].isdecimal())
        }
        processes = measured["processes"] = self._processes.sample(now)
        busy, own = measured["machine"].get("cpu_busy_cores"), processes.get("cpu_cores")
        if busy is not None and own is not None:
            measured["machine"]["other_cpu_cores"] = max(0.0, busy - own)
        measured["machine"]["usable_cores"] = float(len(os.sched_getaffinity(os.getpid())))
        measured["machine"]["quota_cores"] = self._quota.read()
        return measured

    def _read_run(self, _: float) -> dict[str, dict[str, float | None]]:
        counters = self._run.counters
        failed = counters.rejected + counters.dead_lettered + counters.retried
        settled = counters.delivered + failed + counters.returned + counters.lost
        values: dict[str, dict[str, float | None]] = {
            "run": {
                "in_flight": counters.received - settled,
                "received": counters.received,
                "settled": settled,
                "delivered": counters.delivered,
                "given_back": counters.retried + counters.returned,
                "failed": failed,
                "longest_call_seconds": self._run.longest_call_seconds(),
                **self._collector.gauges(),
            }
        }
        for station in self._run.statistics():
            values[f"stage:{station.name}"] = {
                "queue_depth": station.depth,
                "queue_bytes": station.depth_bytes,
                "busy_workers": station.busy,
                "workers": station.workers,
                "waiting_producers": station.waiting_producers,
            }
        return values


class StateReadings:
    """Looks at the states of the workers' threads; used by the recorder's thread."""

    def __init__(self, run: RunInProgress) -> None:
        self._run = run
        try:
            place, reason = find_gil(), ""
        except (GilNotFound, OSError) as error:
            place, reason = None, str(error)
        self._states = ThreadStates(place, gil_reason=reason)
        self._places: list[ThreadPlace] = []

    @property
    def not_measured(self) -> dict[str, str]:
        """{what: why}."""
        return self._states.not_measured

    def find_threads(self) -> Threads | None:
        """Return whose states follow; None if these are the same as before."""
        places = [ThreadPlace(one.process, one.thread_id, one.name) for one in self._run.worker_threads()]
        if places == self._places:
            return None
        self._places = places
        self._states.set_threads(places)
        return Threads([(place.process, place.name) for place in places])

    def look(self) -> States | None:
        """Return the states at this moment; None if no thread can be looked at."""
        return States(time.monotonic_ns(), self._states.look()) if self._states.can_look else None

    def close(self) -> None:
        """Close the kernel's files."""
        self._states.close()


class BacklogNotes:
    """Takes what the source says of its queue, in the place of a file; from any thread."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()

    def write(self, time_ns: int, values: Any) -> None:
        """Keep what was measured."""
        with self._lock:
            self._latest = keep_finite(values)

    def take(self) -> dict[str, dict[str, float]]:
        """Return what came since the last call."""
        with self._lock:
            latest, self._latest = self._latest, {}
        return latest

    def close(self) -> None:
        """Do nothing: there is no file."""
