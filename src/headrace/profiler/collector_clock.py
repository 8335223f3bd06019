"""How long Python's cyclic garbage collector took, by `gc.callbacks`; explicit calls of `gc.collect()` count too.

A collection holds the GIL from its first to its last object, so its time is taken from every thread of the process. Only
the profiled process is watched; worker processes have collectors of their own.

References:
    Python documentation, `gc.callbacks`: called with "start" and "stop", and {"generation", "collected", "uncollectable"}.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import defaultdict


class CollectorClock:
    """Adds up collections from `start` to `stop`.

    Attributes:
        seconds: Within collections.
        thread_seconds: {thread, as the kernel numbers it: seconds of the collections that it made}.
        collections: How many there were.
        full_collections: Those of the oldest generation, which look at every object.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.thread_seconds: defaultdict[int, float] = defaultdict(float)
        self.collections = 0
        self.full_collections = 0
        self._began: float | None = None

    def start(self) -> None:
        """Listen from now on."""
        gc.callbacks.append(self._note_phase)

    def stop(self) -> None:
        """Listen no more. Repeating it does nothing."""
        with contextlib.suppress(ValueError):  # never started, stopped before, or somebody cleared the list
            gc.callbacks.remove(self._note_phase)

    def gauges(self) -> dict[str, float]:
        """Return what was added up so far, as in a resource table."""
        return {
            "gc_seconds": self.seconds,
            "gc_collections": self.collections,
            "gc_full_collections": self.full_collections,
        }

    def _note_phase(self, phase: str, info: dict[str, int]) -> None:
        # Called by the thread that collects; collections never overlap.
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:  # else it had begun before we listened
            took = time.perf_counter() - self._began
            self.seconds += took
            self.thread_seconds[threading.get_native_id()] += took
            self._began = None
            self.collections += 1
            self.full_collections += info["generation"] == 2
