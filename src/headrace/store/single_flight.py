"""Who makes what a cache lacks: one asks for it, the others wait.

How this works. Whoever looks up in vain claims the key; while the claim is held, others wait, for a few times as long as making
one took so far, and then make it themselves: waiting is to save work, and never to hang. A claim ends when it is released, or
when nobody knows it any more, so that an item that is dropped on its way frees its key. Between processes a claim is a lock of
one byte in a file, which the system takes back from a process that dies: nothing is left to clean up. It is taken and given
back by the one thread that has the key in this process, and not under the lock of the threads: each call of the system lets
other threads at the GIL, and all who claim anything would wait until its thread has it again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

_LEAST_PATIENCE, _MOST_PATIENCE = 1.0, 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


class Claim:
    """The right to make what is missing; ends at the latest when it is forgotten."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it is held."""
        return time.monotonic() - self._began

    def release(self) -> None:
        """Let the others look again."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __del__(self) -> None:
        self.release()


class SingleFlight:
    """The claims on the keys of one cache; any thread.

    Args:
        file: Where processes meet; None: this one is alone.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        # Ending a claim may happen within any other call of the same thread, when the last reference goes.
        self._lock = threading.RLock()
        self._claims: dict[bytes, threading.Event] = {}
        self._handle: tuple[int, int] = (0, -1)
        self._seconds = 0.0

    @property
    def patience_seconds(self) -> float:
        """How long others wait for one at most."""
        return min(_MOST_PATIENCE, max(_LEAST_PATIENCE, 4 * self._seconds))

    def claim(self, key: bytes) -> Claim | None:
        """Return a claim; None: somebody has it."""
        with self._lock:
            if key in self._claims:
                return None
            done = self._claims[key] = threading.Event()
        if self._file is None or self._lock_byte(key, fcntl.F_WRLCK):
            return Claim(lambda: self._end(key, done))
        self._forget(key, done)
        return None

    def wait(self, key: bytes) -> Claim | None:
        """Wait until nobody makes it any more; return a claim of one's own, None if that took too long."""
        give_up_at = time.monotonic() + self.patience_seconds
        pause = _FIRST_PAUSE
        while (left := give_up_at - time.monotonic()) > 0:
            with self._lock:
                done = self._claims.get(key)
            if done is not None:
                done.wait(left)
            claim = self.claim(key)
            if claim is not None:
                return claim
            if done is None:  # another process has it
                time.sleep(min(pause, left))
                pause = min(_LONGEST_PAUSE, 2 * pause)
        return None

    def note(self, seconds: float) -> None:
        """Note how long making one took."""
        self._seconds += (seconds - self._seconds) / (8 if self._seconds else 1)

    def _end(self, key: bytes, done: threading.Event) -> None:
        if self._file is not None and self._claims.get(key) is done:
            self._lock_byte(key, fcntl.F_UNLCK)  # before another thread may take it
        self._forget(key, done)

    def _forget(self, key: bytes, done: threading.Event) -> None:
        with self._lock:
            if self._claims.get(key) is done:
                del self._claims[key]
        done.set()

    def _lock_byte(self, key: bytes, kind: int) -> bool:
        """Take or give back the lock of a key's byte; return whether it is so now: also on a disk without locks."""
        try:
            handle = self._open()
        except OSError:  # its folder was removed, or no file can be opened: then each process makes its own
            return True
        place = int.from_bytes(key[:7], "big")
        # struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid. Of the open file, not of the process (OFD).
        request = struct.pack("@hhqqi4x", kind, os.SEEK_SET, place, 1, 0)
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.EACCES)
        return True

    def _open(self) -> int:
        """Return the file's handle of this process: after a fork the parent's locks would count as one's own."""
        process, handle = self._handle
        if process == os.getpid():
            return handle
        with self._lock:
            if self._handle[0] != os.getpid():
                assert self._file is not None
                self._handle = os.getpid(), os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            return self._handle[1]
