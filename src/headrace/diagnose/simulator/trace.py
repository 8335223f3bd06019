"""What a simulation came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.diagnose.simulator.entrance import ANSWERED

#: Share of the first jobs whose ends are left out of the rate: filling.
_FILLING = 0.1
#: Most that the rate in the middle of a steady run may be above the rate of the whole, as a ratio; and the share of the last
#: jobs that the whole is counted without: stragglers.
_BURST, _STRAGGLERS = 1.25, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A simulated run. Arrays are float64, seconds."""

    received: np.ndarray
    """(jobs,) when each job came."""
    done: np.ndarray
    """(jobs,) when each job was done, turned away or given up."""
    outcome: np.ndarray
    """(jobs,) int8: how each job ended; see `entrance`."""
    elapsed: float
    workers_busy: Mapping[str, float]
    """{station: share of its workers' time in service}."""
    starved: Mapping[str, float]
    """{station: share of its workers' time without anything to do}."""
    blocked: Mapping[str, float]
    """{station: share of its workers' time waiting for room in the next queue}."""
    queue_mean: Mapping[str, float]
    """{station: units in its queue}."""
    full: Mapping[str, float]
    """{station: share of the time in which its queue was full}."""
    wait: Mapping[str, float]
    """{station: mean seconds a unit waits in its queue}."""
    batch_mean: Mapping[str, float]
    """{station: mean size of its batches}; only of stations that take batches."""
    cpu_seconds: float
    """Of all cores together."""
    delay_seconds: float
    """Of all workers together: runnable, but not running."""
    gil_seconds: float
    """While somebody kept the GIL."""
    gil_wait: Mapping[str, float]
    """{station: mean seconds a unit waited for the GIL there, in the middle of its program}: what the spans of a run show."""
    gil_wait_seconds: float
    """The same of all workers together."""
    resource_seconds: tuple[float, ...]
    """While each exclusive resource was taken, summed over its places."""
    receivers_busy: float
    """Share of the receivers' time within calls of the source that brought jobs; of its own thread, where it has one."""
    receivers_idle: float
    """Share of their time waiting for jobs to come."""
    cores: float
    num_wakes: int
    """How often a worker that slept was woken; counted where that costs something."""
    num_events: int
    """Steps of the simulation: what it took to make."""

    @property
    def throughput(self) -> float:
        """Jobs per second of the steady part."""
        return steady_rate(self.done[self.outcome == ANSWERED])

    @property
    def whole_rate(self) -> float:
        """Jobs per second from the first end on, but for the last stragglers."""
        ends = np.sort(self.done[self.outcome == ANSWERED])
        ends = ends[: len(ends) - int(len(ends) * _STRAGGLERS)]
        return float((len(ends) - 1) / (ends[-1] - ends[0])) if len(ends) > 1 and ends[-1] > ends[0] else 0.0

    @property
    def comes_in_a_burst(self) -> bool:
        """Whether nearly all ends came late and then at once, so that their middle tells no rate.

        Where a queue holds most of the jobs that are simulated, and those who fill it take the cores from those who empty it,
        the rate of the middle is that of emptying it: many times what two cores can do.
        """
        return self.throughput > _BURST * self.whole_rate > 0

    @property
    def latencies(self) -> np.ndarray:
        """Seconds from each job's coming to its being done, without those that were turned away or given up."""
        return np.asarray((self.done - self.received)[self.outcome == ANSWERED])

    def goodput(self, deadline_seconds: float) -> float:
        """Return the jobs that were answered in time, per second; without filling and draining, which are a deadline long."""
        begins, ends = float(self.received.min()) + deadline_seconds, float(self.received.max())
        in_time = (self.outcome == ANSWERED) & (self.done - self.received <= deadline_seconds)
        return float(np.sum(in_time & (self.done > begins) & (self.done <= ends))) / max(ends - begins, 1e-9)


def steady_rate(done: np.ndarray) -> float:
    """Return ends per second between the middles of the first and the second half of them.

    The measured blocks of a comparison take their rate the same way (`compare.blocks`): filling, draining and single
    stragglers hardly count.

    Args:
        done: float64 (jobs,), seconds, any order.
    """
    ends = np.sort(done)
    ends = ends[int(len(ends) * _FILLING) :]
    half = len(ends) // 2
    if half == 0:
        return 0.0
    apart = float(ends[-half:].mean() - ends[:half].mean())
    return (len(ends) - half) / apart if apart > 0 else float("inf")
