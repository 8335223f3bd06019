"""SIGTERM, Ctrl-C, a terminal that is closed (SIGHUP) and a `stop` event, as the thread that called `run` hears them.

A handler runs between any two instructions of that thread, perhaps while it holds a lock that stopping needs. So it only
counts and rings, and whatever the thread waits for looks at the count.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.pipeline.bell import Bell


def end_signals() -> list[signal.Signals]:
    """Return the signals that end a run in this process; under `nohup` SIGHUP goes on being ignored."""
    hangs_up = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])]


class EndSignals:
    """Counts requests to stop; the thread that called `run` heeds them.

    Args:
        numbers: Signals that count. They reach the main thread alone.
        stop: Counts as the first signal does, once it is set.

    Attributes:
        first: The signal that came first; None: none did.
        num: How many came.
        bell: Rings for each; `stop` rings nothing.
    """

    def __init__(
        self,
        numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
        stop: threading.Event | None = None,
    ) -> None:
        self.first: int | None = None
        self.num = 0
        self.bell = Bell()
        self._numbers = numbers
        self._stop = stop
        self._num_heeded = 0

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Count signals within this block, where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in self._numbers}
        for number in before:
            signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def heed(self, stop: Callable[[], object], may_stop: Callable[[], bool], *, is_stopping: bool) -> None:
        """Call `stop` once for each request that has not been heeded yet; for the first one, once it may stop."""
        is_asked = self.num == 1 or (self.num == 0 and self._stop is not None and self._stop.is_set())
        if is_asked and not is_stopping and not may_stop():
            return
        if self._stop is not None and self._stop.is_set() and not is_stopping:
            stop()
        while self._num_heeded < self.num:
            self._num_heeded += 1
            stop()

    @property
    def is_polled(self) -> bool:
        """Whether something that rings nothing may end the run."""
        return self._stop is not None

    @property
    def has_news(self) -> bool:
        """Whether a signal came that nobody has heeded."""
        return self._num_heeded < self.num

    def _note(self, number: int, _: Any) -> None:
        self.first = self.first or number
        self.num += 1
        self.bell.ring()
