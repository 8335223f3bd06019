"""Reads an iterator in a thread of its own, a few values ahead of whoever takes them.

How this works: the thread alone touches the iterator, and closes it. It sleeps while the values that nobody took are as many as
may be. `close` lets it end after the value that it is at; it is a daemon, so a read that hangs does not keep the process.
What each value took of it is added up, without the time in which it sleeps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from headrace.base.metering import Reading, ThreadMeter

T = TypeVar("T")

#: How long `close` waits for the thread.
_PATIENCE_SECONDS = 5.0


class ReadAhead(Generic[T]):
    """The values of an iterator; None where the next one is not there yet.

    Args:
        values: Read in the thread.
        depth: The most values that are kept.
        name: Of the thread.

    Attributes:
        num_read: Values so far.
        cpu_seconds: That the thread computed for them.
        wait_seconds: That it neither computed nor waited for a core.
    """

    def __init__(self, values: Generator[T, None, None], depth: int, name: str) -> None:
        self._values = values
        self._depth = depth
        self._changed = threading.Condition()
        self._kept: deque[T] = deque()
        self._is_closed = self._is_read = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._tell: Callable[[], object] = bool
        self.num_read = 0
        self.cpu_seconds = self.wait_seconds = 0.0

    def start(self, tell: Callable[[], object]) -> None:
        """Begin to read; `tell` is called, in the thread, after each value and at the end."""
        self._tell = tell
        self._thread.start()

    def __iter__(self) -> Iterator[T | None]:
        return self

    def __next__(self) -> T | None:
        """Return the next value, or None; never waits. Raises what the iterator raised, once its values are taken."""
        with self._changed:
            if self._kept:
                self._changed.notify_all()
                return self._kept.popleft()
            if self._error is not None:
                raise self._error
            if self._is_read or self._is_closed:
                raise StopIteration
            return None

    def close(self) -> None:
        """Read no more, and drop what nobody took; repeating it does nothing."""
        with self._changed:
            self._is_closed = True
            self._kept.clear()
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_SECONDS)

    def _read(self) -> None:
        meter = ThreadMeter(time.monotonic_ns)
        before = meter.read()
        try:
            for value in self._values:
                self._count(before, meter.read())
                if not self._keep(value):
                    break
                self._tell()
                before = meter.read()
        except BaseException as error:
            self._error = error  # whoever takes the next value gets it
        finally:
            meter.close()
            self._values.close()
            self._is_read = True
            self._tell()

    def _count(self, before: Reading, after: Reading) -> None:
        """Add what one value took; where the kernel does not tell how long the thread waited for a core, that it did not."""
        wall, cpu, delay = ((late or 0) - (early or 0) for early, late in zip(before, after, strict=True))
        self.num_read += 1
        self.cpu_seconds += cpu / 1e9
        self.wait_seconds += max(0, wall - cpu - delay) / 1e9

    def _keep(self, value: T) -> bool:
        """Return whether there was room for a value before all was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._kept) < self._depth)
            if not self._is_closed:
                self._kept.append(value)
            return not self._is_closed
