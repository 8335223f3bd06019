"""Hands on the results of one batch while the device already runs the next.

Handing on 32 items takes some hundred microseconds of Python; on the device's thread, the device would wait for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Finisher:
    """A thread that calls a function for each batch, in order; a context manager that ends once everything is done.

    Args:
        hand_on: What to call; it may block, and then so does the caller after one more batch.
        name: Of the thread.
    """

    def __init__(self, hand_on: Callable[..., None], name: str) -> None:
        self._hand_on = hand_on
        self._batches: queue.Queue[tuple[Any, ...] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._work, name=f"{name}-finisher", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> Finisher:
        self._thread.start()
        return self

    def __call__(self, *batch: Any) -> None:
        """Leave one batch to be handed on; raises what handing on an earlier one raised."""
        if self._error is not None:
            raise self._error
        self._batches.put(batch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batches.put(None)
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._hand_on(*batch)
            except BaseException as error:
                self._error = error  # the caller raises it; going on here keeps it from waiting for room for ever
