"""Closes files that this library opened by number, and no file of somebody else's.

How this works: a program may close every file that it does not know (`os.closerange`, as daemons do). The number that was ours
is then given to a file of the program's. Device and inode of what was opened tell the two apart.
"""

from __future__ import annotations

import contextlib
import os

#: Device and inode.
Identity = tuple[int, int]


def identify(file: int) -> Identity:
    """Return what an open file is, whatever its number.

    Raises:
        OSError: If no file has this number.
    """
    about = os.fstat(file)
    return about.st_dev, about.st_ino


def close_own(file: int, identity: Identity) -> None:
    """Close a file, unless the program has closed it already.

    Args:
        file: Its number.
        identity: As `identify` returned when it was opened.
    """
    with contextlib.suppress(OSError):
        if identify(file) == identity:
            os.close(file)
