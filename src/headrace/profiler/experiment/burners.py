"""Threads that take a share of a core, or of the GIL, away from the pipeline for a while.

How this works: a burner works in pieces of about half a millisecond, so that nobody waits for the GIL longer than that, and
sleeps until it is behind its share again. It works for CPU time and not for wall time: where the cores are full it gets what
the kernel gives it, and `burnt_seconds` says how much that was.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

_PIECE_SECONDS = 0.0005
#: About half a millisecond of hashing, during which the GIL is free.
_BYTES = bytes(400_000)
_LONGEST_NAP = 0.005


def hold_gil() -> None:
    """Compute in Python for about half a millisecond."""
    ends = time.perf_counter() + _PIECE_SECONDS
    while time.perf_counter() < ends:
        pass


def hold_core() -> None:
    """Compute without the GIL for about half a millisecond."""
    hashlib.sha1(_BYTES, usedforsecurity=False).digest()


class Burners:
    """Some threads that burn while the context is entered.

    Args:
        work: `hold_gil` or `hold_core`.
        num_threads: >= 1.
        share: Of each thread's time, 0 to 1.
    """

    def __init__(self, work: Callable[[], object], num_threads: int, share: float) -> None:
        self._work = work
        self._share = share
        self._stopping = threading.Event()
        self._burnt = [0.0] * num_threads
        self._threads = [
            threading.Thread(target=self._burn, args=(number,), name="headrace-experiment-burner", daemon=True)
            for number in range(num_threads)
        ]

    @property
    def burnt_seconds(self) -> float:
        """CPU time that was burnt so far, by all threads."""
        return sum(self._burnt)

    def __enter__(self) -> Burners:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _burn(self, number: int) -> None:
        began, before = time.monotonic(), time.thread_time()
        while not self._stopping.is_set():
            burnt = self._burnt[number] = time.thread_time() - before
            ahead = burnt / self._share - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(min(ahead, _LONGEST_NAP))
            else:
                self._work()
