"""Writes lines to a file that may block, such as a pipe that nobody reads, without holding up those that have lines.

How this works. Lines go into a list of bounded length; what does not fit is counted. A thread of this object writes them and
waits for the file as long as it takes. Without the thread (`start` was not called: a supervisor must have one thread alone)
those that bring a line write what the file takes at once. After a fork the child begins with an empty list and without a
thread: what the parent still has to write is the parent's.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable

#: Lines that wait to be written: at most 4 MB.
MOST_WAITING = 1_000
#: How often the thread calls `tick`, without lines to write.
_TICK_SECONDS = 1.0


def call_in_forks(method: Callable[[], object]) -> None:
    """Call a method in each process that is forked from now on, as long as its object lives."""
    known = weakref.WeakMethod(method)
    os.register_at_fork(after_in_child=lambda: (found := known()) is not None and found())


class LineWriter:
    """See above; thread-safe.

    Args:
        descriptor: Of the file; stays open, and the writer's own copy is closed by `close`.
        tell_dropped: Makes the line that says how many were lost.
        tick: Called about once a second, by the thread or with a line, and gives more lines.
    """

    def __init__(
        self,
        descriptor: int,
        tell_dropped: Callable[[int], bytes],
        tick: Callable[[], Iterable[bytes]] = lambda: (),
    ) -> None:
        self._descriptor = os.dup(descriptor)
        self._tell_dropped = tell_dropped
        self._tick = tick
        self._forget()
        call_in_forks(self._forget)

    def _forget(self) -> None:
        """Begin, in this process, with nothing to write."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._num_dropped = 0
        self._news = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._ticked_at = time.monotonic()

    def start(self) -> None:
        """Write by a thread from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-log", daemon=True)
            self._thread.start()

    def put(self, line: bytes) -> None:
        """Take a line; never waits."""
        self._add(line)
        if self._thread is not None:
            self._news.set()
        else:
            self._add_ticked()
            self._write_waiting(0)

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits, but for no longer than this."""
        self._is_closing = True
        for line in self._tick():
            self._add(line)
        deadline = time.monotonic() + seconds
        if self._thread is not None:
            self._news.set()
            self._thread.join(seconds)
            if self._thread.is_alive():
                return  # it waits for a file that takes no more, and has it
        self._write_waiting(max(0.0, deadline - time.monotonic()))
        os.close(self._descriptor)

    def _run(self) -> None:
        while not self._is_closing:
            self._news.wait(_TICK_SECONDS)
            self._news.clear()
            self._add_ticked()
            self._write_waiting(None)

    def _add_ticked(self) -> None:
        if time.monotonic() - self._ticked_at >= _TICK_SECONDS:
            self._ticked_at = time.monotonic()
            for line in self._tick():
                self._add(line)

    def _add(self, line: bytes) -> None:
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                self._num_dropped += 1
            else:
                self._waiting.append(line)

    def _has_waiting(self) -> bool:
        return bool(self._waiting or self._num_dropped)

    def _write_waiting(self, seconds: float | None) -> bool:
        """Write all lines, as long as the file takes each within a time (None: however long); return whether it took all."""
        if not self._writing.acquire(blocking=False):
            return False  # another thread is about it
        try:
            while self._has_waiting():
                if not self._is_writable(seconds) or not self._write_next():
                    return False
            return True
        finally:
            self._writing.release()

    def _is_writable(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(None if seconds is None else seconds * 1e3))

    def _write_next(self) -> bool:
        """Write one line, or how many were lost; return whether the file took it."""
        with self._lock:
            line, num_dropped = self._waiting.popleft() if self._waiting else b"", self._num_dropped
        try:
            written = os.write(self._descriptor, line or self._tell_dropped(num_dropped))
        except OSError as error:
            with self._lock:
                if line and isinstance(
                    error, BlockingIOError
                ):  # another process was quicker, and the file does not wait
                    self._waiting.appendleft(line)
                elif line:  # its reader is gone, its disk full
                    self._num_dropped += 1
            return False
        with self._lock:
            if not line:
                self._num_dropped -= num_dropped
            elif written < len(line):
                self._waiting.appendleft(line[written:])
        return True
