"""Functions that one carrier's calls wait for, in threads of their own: such as reading a file, which no event tells of.

How this works: `run` hands a function to a thread that is idle, or else starts one, so that one that hangs holds up nobody.
There are as many threads as functions were under way at a time. A thread leaves what the function came to in `_ended` and
rings the carrier's bell. Closing sends each thread away; one that hangs goes when it comes back.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

W = TypeVar("W")


class Aside(Generic[W]):
    """Functions under way in other threads.

    Args:
        ring: Called by another thread when one has ended.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._work: queue.SimpleQueue[tuple[W, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._ended: deque[tuple[W, Any, BaseException | None]] = deque()
        self._num_threads = 0
        self._num_busy = 0

    @property
    def has_ended(self) -> bool:
        """Whether a function has ended that `take` has not seen."""
        return bool(self._ended)

    def run(self, who: W, function: Callable[[], Any]) -> None:
        """Have another thread call a function.

        Raises:
            RuntimeError: If a thread is needed and none can be started.
        """
        if self._num_busy == self._num_threads:
            threading.Thread(target=self._serve, name="headrace-aside", daemon=True).start()
            self._num_threads += 1
        self._num_busy += 1
        self._work.put((who, function))

    def take(self) -> list[tuple[W, Any, BaseException | None]]:
        """Return who waits no longer, with what the function returned, or what it raised."""
        taken = []
        while self._ended:
            taken.append(self._ended.popleft())
        self._num_busy -= len(taken)
        return taken

    def close(self) -> None:
        """Send the threads away."""
        for _ in range(self._num_threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            who, function = work
            try:
                self._ended.append((who, function(), None))
            except BaseException as error:
                self._ended.append((who, None, error))
            del work, who, function  # else kept until the next one comes
            self._ring()
