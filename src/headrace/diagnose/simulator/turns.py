"""Which threads have a core, where they take turns: the rest of the simulation sees who runs and who waits for one."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

from headrace.diagnose.simulator.station_states import Worker


class RunsThreads(Protocol):
    """Runs who has a core: the engine."""

    now: float

    def run_on(self, worker: Worker, seconds: float) -> None:
        """Let a thread that has a core work for so long."""
        ...

    def interrupt(self, worker: Worker) -> float:
        """Stop a thread that works, and return the seconds of its work that are left."""
        ...

    def later(self, when: float, call: Callable[[Any], None], argument: Any) -> None:
        """Call something at a point in time."""
        ...


class Turns:
    """As many threads as there are cores run, each until it waits or has had its slice while another is ready.

    Who has had least of a core comes first; see `engine`.

    Args:
        engine: Runs who has a core.
        places: Cores.
        slice_seconds: Of a core, > 0.
    """

    def __init__(self, engine: RunsThreads, places: int, slice_seconds: float) -> None:
        self._engine, self._places, self._slice_seconds = engine, places, slice_seconds
        self._on_cores: list[Worker] = []
        self._ready: list[tuple[float, int, Worker]] = []
        self._least_used = 0.0
        self._is_watched = False

    def start(self, worker: Worker, seconds: float) -> None:
        """Let a thread without a core work for so long, once it has one."""
        if len(self._on_cores) < self._places:
            self._enter(worker, seconds)
            return
        worker.used = max(worker.used, self._least_used)  # who slept has no more of a claim than who had least
        self._wait(worker, seconds)
        if not self._is_watched:
            self._watch()

    def leave(self, worker: Worker) -> None:
        """Take a thread off its core, and give that to who is next."""
        worker.is_on_core = False
        worker.used += self._engine.now - worker.came_on_core
        self._on_cores.remove(worker)
        while self._ready and len(self._on_cores) < self._places:
            _, token, other = heappop(self._ready)
            if other.token == token:
                self._enter(other, other.to_do)

    def _enter(self, worker: Worker, seconds: float) -> None:
        worker.is_on_core = True
        worker.came_on_core = self._engine.now
        self._on_cores.append(worker)
        self._least_used = max(self._least_used, worker.used)
        self._engine.run_on(worker, seconds)

    def _wait(self, worker: Worker, seconds: float) -> None:
        worker.to_do = seconds
        heappush(self._ready, (worker.used, worker.token, worker))

    def _watch(self) -> None:
        self._is_watched = True
        when = min(worker.came_on_core for worker in self._on_cores) + self._slice_seconds
        self._engine.later(max(when, self._engine.now), self._end_slice, None)

    def _end_slice(self, _: None) -> None:
        """Take the core from who has had a slice of it, if there is one, and look again while others are ready."""
        self._is_watched = False
        if not self._ready:
            return
        now = self._engine.now
        worker = min(self._on_cores, key=lambda one: one.came_on_core)
        if worker.token and now >= worker.came_on_core + self._slice_seconds:
            left = self._engine.interrupt(worker)
            worker.used += now - worker.came_on_core
            worker.came_on_core = now  # that was counted
            self._wait(worker, left)
            self.leave(worker)
        if self._ready:
            self._watch()
