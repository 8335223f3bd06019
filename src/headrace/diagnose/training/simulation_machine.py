"""Processes that share the cores of one machine, in simulated time.

How this works: a process is a generator that yields what it needs next, or None to sleep until somebody wakes it. Each core has
a queue of its own, as in Linux, and its threads take turns:

- A thread that wakes goes to the core that it was on. If that is busy, an idle one is looked for, among the fewer cores the
  busier all were lately; on two busy cores nobody looks. It then takes its old core from a thread that has had more of it.
- At each tick of the kernel the thread that has had least of a core gets it.
- A core that becomes idle takes nothing from the queues of others. They are balanced at some ticks only, so that a core may be
  idle for milliseconds while a thread waits for another one. That is why more processes than cores do not use all of the cores,
  least where they wait for one another.

Two heaps hold what comes next: points in time, for what is blocked; and ends of work on cores. All busy cores have the same
speed, so that one virtual clock runs at it: work of c seconds ends when the virtual clock has moved on by c. Cores that work
side by side share caches and memory, and often the two halves of a core are counted as two: the more of them are busy, the
slower is each, down to `pace` where all are. (`diagnose.simulator.engine`, which knows stations, the GIL and devices, shares
cores evenly; a loader with its own order of batches does not fit into it.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from heapq import heappop, heappush

#: Seconds from tick to tick: 250 a second, as Debian and Ubuntu configure Linux.
TICK = 0.004
#: Ticks at which a thread was waiting, of which one balances queues. On Linux 6.18 with two cores, traced, an idle core took
#: over a waiting thread at 71 of the 303 ticks at which there were both.
_BALANCED = 4
#: Linux looks for an idle core among (1 - this x use^2) of those that share a cache, rounded down (`update_idle_cpu_scan`).
_LOOKED_LESS = 1.17**2
#: Seconds in which what is known of the use of the cores halves, as Linux averages it.
_HALF_LIFE = 0.032


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


class _Thread:
    """One thread of a process.

    Attributes:
        process: Whose it is.
        is_first: Its waiting for a core counts as that of the process.
        core: Where it is or was last; None before its first work.
        left: Seconds of work that are left, as of when it last got a core.
        received: Seconds that it has had of its core, compared with others there; as of then, too.
        since: On the virtual clock: when it got its core.
        ends: When it will have done its work; None while it has no core.
        queued: When it began to wait for a core.
    """

    __slots__ = ("core", "ends", "is_first", "left", "process", "queued", "received", "since")

    def __init__(self, process: Process, *, is_first: bool) -> None:
        self.process, self.is_first = process, is_first
        self.core: int | None = None
        self.left = self.received = self.since = self.queued = 0.0
        self.ends: float | None = None


class _Core:
    """A core and who waits for it.

    Attributes:
        thread: That computes; None while it is idle.
        queue: Threads that wait for it.
        least: What the thread that has had least of it has had; never falls.
    """

    __slots__ = ("least", "queue", "thread")

    def __init__(self) -> None:
        self.thread: _Thread | None = None
        self.queue: list[_Thread] = []
        self.least = 0.0


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
            cores: Cores, > 0; what is left of a quota need not be whole.
            others: Threads of other programs that are always runnable, >= 0; need not be whole.
            by_group: The kernel shares the cores among sessions or containers: all processes together get what one thread
                would get beside the others, however many they are.
            pace: Speed of a core while all are busy, over that of one that is busy alone; 0 to 1.
        """
        self.now = self.busy = self.run_delay = 0.0
        self._num_cores, self._others, self._by_group, self._pace = cores, others, by_group, pace
        self._cores = [_Core() for _ in range(math.ceil(cores))]
        self._num_busy = self._num_waiting = self._ticks = self._serial = 0
        self._use = self._virtual = 0.0
        self._ready: deque[Process] = deque()
        self._timers: list[tuple[float, int, Process, Need]] = []
        self._ends: list[tuple[float, int, _Thread]] = []
        self._threads: dict[Process, list[_Thread]] = {}
        self._num_computing: dict[Process, int] = {}

    def start(self, process: Process) -> None:
        """Let a process begin at the present time, or go on after it yielded None."""
        self._ready.append(process)

    wake = start

    def run(self) -> None:
        """Go on until nothing is left to do; processes that sleep are left as they are."""
        while True:
            while self._ready:
                process = self._ready.popleft()
                self._begin(process, self._next_need(process))
            if not self._pass_time():
                return

    # What a process needs.

    @staticmethod
    def _next_need(process: Process) -> Need | None:
        """Return what a process needs next, but for what takes no time; None where it sleeps."""
        need = next(process, None)
        while need is not None and need.blocked <= 0 and need.cpu <= 0:
            need = next(process, None)
        return need

    def _begin(self, process: Process, need: Need | None) -> None:
        if need is None:
            return
        if need.blocked > 0:
            self._serial += 1
            heappush(self._timers, (self.now + need.blocked, self._serial, process, need))
        else:
            self._compute(process, need)

    def _compute(self, process: Process, need: Need, core: int | None = None) -> None:
        """Let the threads of a process compute, the first of them on the core that it has, if it has one."""
        threads, width = self._threads.setdefault(process, []), max(1, round(need.width))
        while len(threads) < width:
            threads.append(_Thread(process, is_first=not threads))
        self._num_computing[process] = width
        for thread in threads[:width]:
            thread.left = need.cpu
        if core is not None:
            threads[0].core = core
            self._put(threads[0], core)
        for thread in threads[0 if core is None else 1 : width]:
            self._place(thread)

    def _finish(self, thread: _Thread) -> None:
        """A thread has done its work; with the last of them its process goes on, on the same core if it computes."""
        core, process = self._take_off(thread), thread.process
        self._num_computing[process] -= 1
        if self._num_computing[process]:
            self._fill(core)
            return
        need = self._next_need(process)
        if need is not None and need.blocked <= 0:
            self._compute(process, need, core)
            return
        self._fill(core)
        self._begin(process, need)

    # Who has which core.

    def _place(self, thread: _Thread) -> None:
        """Give a thread that wants to compute a core, or let it wait for one."""
        chosen = self._choose(thread.core)
        core = self._cores[chosen]
        thread.received = core.least if chosen != thread.core else max(thread.received, core.least)
        thread.core, thread.queued = chosen, self.now
        current = core.thread
        if current is not None and current.received + self._virtual - current.since <= thread.received:
            self._wait(thread)
            return
        if current is not None:
            self._take_off(current)
            self._wait(current)
        self._put(thread, chosen)

    def _choose(self, last: int | None) -> int:
        """Return the core for a thread that was on `last`."""
        if last is None:
            return min(
                range(len(self._cores)),
                key=lambda one: (self._cores[one].thread is not None, len(self._cores[one].queue)),
            )
        if self._cores[last].thread is not None:
            looked = int(len(self._cores) * (1.0 - _LOOKED_LESS * self._use**2))
            for step in range(1, min(looked, len(self._cores) - 1) + 1):
                other = (last + step) % len(self._cores)
                if self._cores[other].thread is None:
                    return other
        return last

    def _wait(self, thread: _Thread) -> None:
        assert thread.core is not None
        thread.queued = self.now
        self._cores[thread.core].queue.append(thread)
        self._num_waiting += 1

    def _put(self, thread: _Thread, core: int) -> None:
        """Let a thread compute on a core that is idle."""
        thread.core, thread.since, thread.ends = core, self._virtual, self._virtual + thread.left
        self._cores[core].thread = thread
        self._num_busy += 1
        self._serial += 1
        heappush(self._ends, (thread.ends, self._serial, thread))

    def _take_off(self, thread: _Thread) -> int:
        """Take a thread from its core, and return that."""
        assert thread.core is not None
        had = self._virtual - thread.since
        thread.received += had
        thread.left -= had
        thread.ends = None
        core = self._cores[thread.core]
        core.thread = None
        core.least = max(core.least, min(one.received for one in (thread, *core.queue)))
        self._num_busy -= 1
        return thread.core

    def _fill(self, number: int, source: int | None = None) -> None:
        """Give a core that is idle the thread that has had least of those in its queue, or in that of another one."""
        core, queue = self._cores[number], self._cores[number if source is None else source].queue
        if not queue:
            return
        thread = min(queue, key=lambda one: one.received)
        queue.remove(thread)
        self._num_waiting -= 1
        if thread.is_first:
            self.run_delay += self.now - thread.queued
        if source is not None:
            thread.received = core.least
        self._put(thread, number)

    def _tick(self) -> None:
        self._ticks += 1
        if self._ticks % _BALANCED == 0:
            for number, core in enumerate(self._cores):
                if core.thread is None and self._num_waiting:
                    self._fill(number, max(range(len(self._cores)), key=lambda one: len(self._cores[one].queue)))
        for number, core in enumerate(self._cores):
            current = core.thread
            if current is None or not core.queue:
                continue
            if min(one.received for one in core.queue) < current.received + self._virtual - current.since:
                self._take_off(current)
                self._fill(number)
                self._wait(current)

    # Time.

    def _share(self) -> float:
        """Return which share of the time a busy core works for these processes."""
        if not self._num_busy:
            return 1.0
        runnable = self._num_busy + self._num_waiting
        wanted = runnable * (1.0 + self._others) if self._by_group else runnable + self._others
        of_others = min(1.0, self._num_cores / wanted) / min(1.0, self._num_cores / runnable)
        return of_others * min(1.0, self._num_cores / self._num_busy)

    def _speed_of_a_core(self) -> float:
        """Return at which speed a core computes beside those that are busy now."""
        if self._pace == 1.0 or self._num_cores <= 1.0:
            return 1.0
        beside = min(max(self._num_busy + self._others - 1.0, 0.0) / (self._num_cores - 1.0), 1.0)
        return 1.0 - (1.0 - self._pace) * beside

    def _pass_time(self) -> bool:
        """Move on to what comes next; False if there is nothing."""
        while self._ends and self._ends[0][0] != self._ends[0][2].ends:
            heappop(self._ends)  # it was taken from its core before that
        share = self._share()
        speed = share * self._speed_of_a_core()
        timed = self._timers[0][0] if self._timers else math.inf
        computed = self.now + (self._ends[0][0] - self._virtual) / speed if self._ends else math.inf
        ticked = (math.floor(self.now / TICK + 1e-6) + 1) * TICK if self._num_waiting else math.inf
        until = min(timed, computed, ticked)
        if until == math.inf:
            return False
        self._go_to(until, share, speed)
        if computed <= until:
            self._virtual, _, thread = heappop(self._ends)
            self._finish(thread)
        elif timed <= until:
            _, _, process, need = heappop(self._timers)
            if need.cpu > 0:
                self._compute(process, need)
            else:
                self.start(process)
        else:
            self._tick()
        return True

    def _go_to(self, until: float, share: float, speed: float) -> None:
        passed = until - self.now
        kept = 0.5 ** (passed / _HALF_LIFE)
        self._use = self._use * kept + self._num_busy / len(self._cores) * (1.0 - kept)
        self.busy += passed * share * self._num_busy
        self.run_delay += passed * (1.0 - share) * self._num_busy
        self._virtual += passed * speed
        self.now = until
