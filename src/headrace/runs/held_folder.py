"""Keeps others from taking a folder that a process writes into.

The folder itself is locked (`flock`), so nothing is left behind and the kernel lets go when the process dies, however that
happens. Forks keep the lock too: workers of a supervisor that was killed still write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from headrace.base.errors import RunFolderError


class HeldFolder:
    """Holds a folder until it is closed, or forgotten.

    Args:
        path: Of the folder, which exists.

    Raises:
        RunFolderError: If another run holds it.
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._release = weakref.finalize(self, _release, place, os.getpid())
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"a run that goes on now writes into {path}; end that one first, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks: two runs in one folder are not noticed there

    def close(self) -> None:
        """Let go of the folder; repeating it does nothing."""
        self._release()


def _release(place: int, pid: int) -> None:
    with contextlib.suppress(OSError):
        if os.getpid() == pid:  # the lock is one with that of the forks, which are not to end it for their parent
            fcntl.flock(place, fcntl.LOCK_UN)
        os.close(place)
