"""Waits until somebody writes to a file, by inotify, so that nobody need look again and again.

References:
    Linux man-pages, inotify(7): a write gives IN_MODIFY; what is written from another machine or through a memory map gives
    nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import threading
import time
from pathlib import Path

_IN_MODIFY = 0x2
_MOST_BYTES = 65_536
#: How long after a write it may take until what was written can be seen: the disk's time for an fsync, mostly milliseconds.
_SETTLE_SECONDS = 0.5


class FileWatch:
    """Waits for writes to one file; thread-safe, but one thread at a time can wait.

    Args:
        file: Must exist, and may not be replaced by another.

    Raises:
        OSError: If it cannot be watched: another system, no such file, too many watches.
    """

    def __init__(self, file: Path) -> None:
        self.written_at = -math.inf
        """When a wait last ended with a write, `time.monotonic()`."""
        self._in_use = threading.Lock()
        self._closing = threading.Lock()
        self._is_closed = False
        self._events = _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._ending = -1
        try:
            _call("inotify_add_watch", self._events, os.fsencode(file), _IN_MODIFY)
            self._ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            self._close_files()
            raise
        self._poll = select.poll()
        self._poll.register(self._events, select.POLLIN)
        self._poll.register(self._ending, select.POLLIN)

    def wait(self, seconds: float) -> bool | None:
        """Wait until the file was written to since the last wait, or the watch is closed.

        Returns:
            Whether it was written to; None, at once, where another thread waits or the watch is closed.
        """
        if not self._in_use.acquire(blocking=False):
            return None
        try:
            if self._is_closed:
                return None
            self._poll.poll(max(0.0, seconds) * 1e3)
            with contextlib.suppress(BlockingIOError):
                os.read(self._events, _MOST_BYTES)
                self.written_at = time.monotonic()
                return True
            return False
        finally:
            self._in_use.release()

    def close(self) -> None:
        """Wake who waits, and wait no more. Repeating it does nothing, in any thread."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            os.eventfd_write(self._ending, 1)
            # Who waits leaves now; else it would wait for a file that another part has opened meanwhile.
            with self._in_use:
                self._close_files()

    def _close_files(self) -> None:
        for file in (self._events, self._ending):
            if file >= 0:
                os.close(file)


class Looks:
    """Pauses between looks at a file that others write to: those of one call that waits for something to be there.

    How this works: with a watch the next look is due when somebody writes. What is written can be seen a little later, once it
    is on the disk, so for a while looks follow after growing pauses too; without a watch all looks follow one another so.

    Args:
        watch: Of the file; None: it cannot be watched.
        first_seconds: The first pause, doubled each time.
        last_seconds: The longest one.
        longest_seconds: How long nothing need be written before the next look all the same.
    """

    def __init__(
        self, watch: FileWatch | None, first_seconds: float, last_seconds: float, longest_seconds: float
    ) -> None:
        self._watch = watch
        self._next = self._first = first_seconds
        self._last = last_seconds
        self._longest = longest_seconds
        self._has_heard = False
        self._was_silent = False

    def missed(self) -> bool:
        """Return whether what is there now was written while the watch told of no write, and tells of none by now."""
        return self._watch is not None and self._was_silent and self._watch.wait(0.0) is False

    def wait(self, closed: threading.Event, most_seconds: float, due_seconds: float = math.inf) -> None:
        """Wait until the next look is due, or the file is closed.

        Args:
            closed: Set by who closes the file, and then its watch.
            most_seconds: Look then at the latest.
            due_seconds: Then something will be there without a write.
        """
        self._was_silent = False
        most_seconds = min(most_seconds, max(due_seconds, 0.0))
        now = time.monotonic()
        pause = min(self._next, self._last, most_seconds)
        self._next *= 2
        watch = self._watch
        if watch is None or self._has_heard:  # not at once again: somebody may write without a pause
            self._has_heard = False
            closed.wait(pause)
            return
        is_settling = now - watch.written_at < _SETTLE_SECONDS
        pause = pause if is_settling else min(most_seconds, self._longest)
        was_written = watch.wait(pause)
        if was_written is None:
            closed.wait(pause)
        elif was_written:
            self._has_heard = True
            self._next = self._first
        else:
            self._was_silent = not is_settling and pause + _SETTLE_SECONDS < due_seconds


def _call(name: str, *arguments: int | bytes) -> int:
    """Call a function of the C library; raise OSError if it fails or does not exist."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError:
        raise OSError(f"this system has no {name}") from None
    found = int(function(*arguments))
    if found < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return found
