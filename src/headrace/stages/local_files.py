"""Reads files that jobs name, from the folders that the operator allows."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.base.errors import FetchFailed, FetchRejected

#: Files here show the state of the kernel and of other processes: environments with secrets, memory, settings.
_OF_THE_SYSTEM = ("/proc", "/sys", "/dev")


def file_reader(folders: Sequence[str] | None, max_bytes: int) -> Callable[[Path], bytes]:
    """Return a function that reads a file whole.

    It raises FetchRejected if the file is outside of the folders, not a regular file, too large, missing or may not be read;
    FetchFailed if reading fails on the way (a network file system, a worn disk).

    Args:
        folders: Where files may be, links followed; None: anywhere except in /proc, /sys and /dev. These are allowed only by a
            folder inside of them.
        max_bytes: Largest file.
    """
    roots = None if folders is None else [os.path.realpath(folder) for folder in folders]
    closed = [place for place in _OF_THE_SYSTEM if not any(_is_in(root, [place]) for root in roots or ())]

    def read(path: Path) -> bytes:
        try:
            # O_PATH opens only the name: it touches no device and waits for no pipe. And the file that is checked is the one
            # that is read, even if somebody moves links meanwhile.
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                _check(handle, path, roots, closed)
                return _read(handle, path, max_bytes)
            finally:
                os.close(handle)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise FetchRejected(f"file.unreadable: {path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise FetchRejected(f"file.unreadable: {str(path)!r} is not a path: {error}") from None
        except OSError as error:
            raise FetchFailed(f"file.failed: {path} cannot be read: {error}") from None

    return read


def _check(handle: int, path: Path, roots: Sequence[str] | None, closed: Sequence[str]) -> None:
    real = os.readlink(f"/proc/self/fd/{handle}")
    if roots is not None and not _is_in(real, roots):
        raise FetchRejected(
            f"file.refused: {path} is not in a folder that jobs may name files in; to allow one: [network] files "
            "(file: addresses, and jobs from a queue on the network, may name none unless it does)"
        )
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        raise FetchRejected(f"file.unreadable: {path} cannot be read: Is a directory")
    if not stat.S_ISREG(mode):
        raise FetchRejected(f"file.special: {path} is a device, pipe or socket; expected a regular file")
    # As it is written too: through /proc/PID/fd a process's anonymous memory is reached, which bears another name.
    if _is_in(real, closed) or _is_in(os.path.abspath(path), closed):
        raise FetchRejected(
            f"file.special: {path} leads into {', '.join(_OF_THE_SYSTEM)}, where files show processes and their secrets; to "
            "allow a folder in there: name it in [network] files"
        )


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(os.path.commonpath((folder, path)) == folder for folder in folders)


def _read(handle: int, path: Path, max_bytes: int) -> bytes:
    # buffered: reads on where the system gives less than was asked for
    with open(f"/proc/self/fd/{handle}", "rb") as file:
        # Asking for max_bytes at once would allocate as much for each file.
        size = min(os.fstat(file.fileno()).st_size, max_bytes)
        data = file.read(size + 1)
        if size < len(data) <= max_bytes:  # it grew, or is of a kind that does not tell its size
            data += file.read(max_bytes + 1 - len(data))
    if len(data) > max_bytes:
        raise FetchRejected(f"file.too_large: {path} is larger than max_bytes = {max_bytes}")
    return data
