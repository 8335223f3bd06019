"""Files that a model may not reach, watched by the kernel: every open, by Python or by native code, is seen."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import TracebackType

_IN_ACCESS, _IN_OPEN = 0x1, 0x20  # linux/inotify.h


class Watch:
    """Counts how often files are opened while it is entered."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Watch:
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for path in self._paths:
            added = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_OPEN | _IN_ACCESS)
            assert added >= 0, os.strerror(ctypes.get_errno())
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.close(self._descriptor)

    def was_opened(self) -> bool:
        """Return whether any of the files was opened or read since the last call."""
        try:
            return bool(os.read(self._descriptor, 65536))
        except BlockingIOError:
            return False
