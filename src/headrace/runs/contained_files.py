"""Reads of a run folder stay in it: a folder that somebody else made may hold links to anything, devices and pipes."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

#: Rows of one span file; headrace's own are cut at 50,000. Equal rows take no space in a file, and all of it in memory.
MOST_ROWS = 5_000_000


def own_file(folder: Path, file: Path) -> Path:
    """Return a file of a run folder, to be read now. The folder may be a link itself.

    Raises:
        FileNotFoundError: If it is not there.
        OSError: If it is a link that leads out of the folder, or no regular file.
    """
    try:
        real = file.resolve(strict=True)
    except RuntimeError:  # links in a circle
        raise OSError(errno.ELOOP, "it is a link to itself", str(file)) from None
    if not real.is_relative_to(folder.resolve()):
        raise OSError(
            errno.EPERM, "it is a link that leads out of the run folder; copy the file there to have it read", str(file)
        )
    if not stat.S_ISREG(real.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a folder, device or pipe, and no file", str(file))
    return real


def is_own_folder(folder: Path, part: Path) -> bool:
    """Return whether a folder in a run folder is really there, so that removing files in it removes none of somebody else's."""
    return part.resolve().is_relative_to(folder.resolve())
