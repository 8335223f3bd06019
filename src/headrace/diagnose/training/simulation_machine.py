"""Processes that share the cores of one machine, in simulated time.

How this works: a process is a generator that yields what it needs next, or None to sleep until somebody wakes it. Two heaps
hold what comes next: points in time, for what is blocked; and work on cores. Runnable threads share the cores evenly, so all
advance at one speed, min(1, cores / runnable threads), and one virtual clock runs at that speed: work of c seconds ends when
the virtual clock has moved on by c. Cores that work side by side share caches and memory, and often the two halves of a core
are counted as two: the more of them are busy, the slower is each, down to `pace` where all are. (The same method as
`diagnose.simulator.engine`, which knows stations, the GIL and devices; a loader with its own order of batches does not fit into
those.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class Need:
    """A piece of work: first blocked, then computing."""

    blocked: float
    """Seconds in which it needs no core: reading, sleeping."""
    cpu: float
    """Seconds of each of its threads on a core."""
    width: float = 1.0
    """Threads that compute side by side."""

    def scaled(self, factor: float) -> Need:
        """Return it with both parts times a factor."""
        return Need(self.blocked * factor, self.cpu * factor, self.width)


#: No work.
NOTHING = Need(0.0, 0.0)
#: Yields what it needs; None: it sleeps until `Machine.wake`.
Process = Generator[Need | None, None, None]


class Machine:
    """Cores, and the processes that share them.

    Attributes:
        now: Seconds of simulated time.
        busy: Core-seconds that its processes held, as the system would count them.
        run_delay: Seconds that they were runnable and did not run, one thread of each counted.
    """

    def __init__(self, cores: float, others: float = 0.0, *, by_group: bool = False, pace: float = 1.0) -> None:
        """Begin at time 0, idle.

        Args:
            cores: Cores, > 0.
            others: Threads of other programs that are always runnable, >= 0; need not be whole.
            by_group: The kernel shares the cores among sessions or containers: all processes together get what one thread
                would get beside the others, however many they are.
            pace: Speed of a core while all are busy, over that of one that is busy alone; 0 to 1.
        """
        self.now = self.busy = self.run_delay = 0.0
        self._cores, self._others, self._by_group, self._pace = cores, others, by_group, pace
        self._virtual = self._threads = 0.0
        self._serial = 0
        self._ready: deque[Process] = deque()
        self._timers: list[tuple[float, int, Process, Need]] = []
        self._running: list[tuple[float, int, Process, Need, float]] = []

    def start(self, process: Process) -> None:
        """Let a process begin at the present time, or go on after it yielded None."""
        self._ready.append(process)

    wake = start

    def run(self) -> None:
        """Go on until nothing is left to do; processes that sleep are left as they are."""
        while True:
            while self._ready:
                self._advance(self._ready.popleft())
            if not self._pass_time():
                return

    def _advance(self, process: Process) -> None:
        need = next(process, None)
        if need is not None:
            self._serial += 1
            if need.blocked > 0:
                heappush(self._timers, (self.now + need.blocked, self._serial, process, need))
            else:
                self._compute(process, need)

    def _compute(self, process: Process, need: Need) -> None:
        self._serial += 1
        self._threads += need.width
        heappush(self._running, (self._virtual + need.cpu, self._serial, process, need, self.now))

    def _speed_of_a_core(self) -> float:
        """Return at which speed a core computes beside those that are busy now."""
        if self._pace == 1.0 or self._cores <= 1.0:
            return 1.0
        beside = min(max(self._threads + self._others - 1.0, 0.0) / (self._cores - 1.0), 1.0)
        return 1.0 - (1.0 - self._pace) * beside

    def _wanted(self) -> float:
        """Return how many threads want a core, as far as they count beside one of these processes."""
        return self._threads * (1.0 + self._others) if self._by_group else self._threads + self._others

    def _pass_time(self) -> bool:
        """Move on to what comes next; False if there is nothing."""
        share = min(1.0, self._cores / self._wanted()) if self._threads else 1.0
        speed = share * self._speed_of_a_core()
        timed = self._timers[0][0] if self._timers else float("inf")
        computed = self.now + (self._running[0][0] - self._virtual) / speed if self._running else float("inf")
        until = min(timed, computed)
        if until == float("inf"):
            return False
        self._virtual += (until - self.now) * speed
        self.busy += (until - self.now) * share * self._threads
        self.now = until
        if timed <= computed:
            _, _, process, need = heappop(self._timers)
            self._compute(process, need)
            return True
        self._virtual, _, process, need, began = heappop(self._running)
        self._threads = self._threads - need.width if self._running else 0.0
        self.run_delay += max(0.0, self.now - began - need.cpu)
        self._ready.append(process)
        return True
