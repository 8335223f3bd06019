"""Reads an iterator in a thread of its own, a few values ahead of whoever takes them.

How this works: the thread alone touches the iterator, and closes it. It sleeps while the values that nobody took are as many as
may be. `close` lets it end after the value that it is at; it is a daemon, so a read that hangs does not keep the process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

#: How long `close` waits for the thread.
_PATIENCE_SECONDS = 5.0


class ReadAhead(Generic[T]):
    """The values of an iterator; None where the next one is not there yet.

    Args:
        values: Read in the thread.
        depth: The most values that are kept.
        name: Of the thread.
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
        try:
            for value in self._values:
                if not self._keep(value):
                    break
                self._tell()
        except BaseException as error:
            self._error = error  # whoever takes the next value gets it
        finally:
            self._values.close()
            self._is_read = True
            self._tell()

    def _keep(self, value: T) -> bool:
        """Return whether there was room for a value before all was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._kept) < self._depth)
            if not self._is_closed:
                self._kept.append(value)
            return not self._is_closed
