"""Hands on the results of one batch while the device already runs the next.

Handing on 32 items takes some hundred microseconds of Python; on the device's thread, the device would wait for it. Where
the device has nothing to do, or takes less time than it costs to wake a thread, the device's thread does it itself.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from headrace.base.threads import start_thread


class Finisher:
    """A thread that calls a function for each batch, in order; a context manager that ends once everything is done.

    Args:
        hand_on: What to call; it may block, and then so does the caller after one more batch.
        name: Of the thread.
        broke: Told what `hand_on` raised, at once: the caller may be waiting for a batch that never comes.
    """

    def __init__(self, hand_on: Callable[[Any], None], name: str, broke: Callable[[BaseException], object]) -> None:
        self._hand_on = hand_on
        self._broke = broke
        self._batches: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room = threading.Lock()  # held while a batch waits for the thread
        # Each is counted by one thread, so neither needs a lock.
        self._num_left = self._num_done = 0
        self._thread = threading.Thread(target=self._work, name=f"{name}-finisher", daemon=True)

    def __enter__(self) -> Finisher:
        start_thread(self._thread, "lower the workers of the stages")
        return self

    def __call__(self, batch: Any, *, in_place: bool = False) -> None:
        """Leave one batch to be handed on.

        Args:
            batch: What `hand_on` gets.
            in_place: Hand it on in this thread, unless an earlier one is still on its way.
        """
        if in_place and self._num_left == self._num_done:
            self._hand_on(batch)
            return
        self._room.acquire()
        self._num_left += 1
        self._batches.put(batch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batches.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._room.release()
            try:
                self._hand_on(batch)
            except BaseException as error:
                self._broke(error)  # and go on, or the caller would wait for room for ever
            self._num_done += 1
