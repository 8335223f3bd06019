"""Reads files that jobs name, and parts of shards, from the folders that the operator allows."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.base.errors import FetchFailed, FetchRejected
from headrace.base.pieces import Piece
from headrace.store.reading import changed, read_all, version_of

#: Shards that one worker keeps open.
_MOST_OPEN = 64

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
    roots, closed = _open_and_closed(folders)

    def read(path: Path) -> bytes:
        with _errors_of(path):
            # O_PATH opens only the name: it touches no device and waits for no pipe. And the file that is checked is the one
            # that is read, even if somebody moves links meanwhile.
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                _check(handle, path, roots, closed)
                return _read(handle, path, max_bytes)
            finally:
                os.close(handle)

    return read


class PieceReader:
    """Reads parts of files, which stay open between the calls; any thread.

    It raises what a `file_reader` raises, FetchRejected if the part is not there or is not what was noted of it.

    Args:
        folders: As of `file_reader`.
        max_bytes: Largest part.
    """

    def __init__(self, folders: Sequence[str] | None, max_bytes: int) -> None:
        self._roots, self._closed = _open_and_closed(folders)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._handles: OrderedDict[Path, _Handle] = OrderedDict()

    def __call__(self, piece: Piece) -> bytes:
        """Return the bytes."""
        if piece.length > self._max_bytes:
            raise FetchRejected(
                f"file.too_large: {piece.length} bytes at {piece.offset} of {piece.path} are more than "
                f"max_bytes = {self._max_bytes}"
            )
        with _errors_of(piece.path):
            handle = self._open(piece.path)
            data = read_all(handle.number, piece.length, piece.offset)
        if len(data) < piece.length:
            raise FetchRejected(
                f"tar.truncated: {piece.path} has {len(data)} of the {piece.length} bytes at {piece.offset}: it was cut off "
                "since it was listed"
            )
        if piece.crc32 is None and piece.version is not None and version_of(handle.number) != piece.version:
            raise FetchRejected(changed(str(piece.path)))
        if piece.crc32 is not None and zlib.crc32(data) != piece.crc32:
            raise FetchRejected(
                f"tar.checksum: the {piece.length} bytes at {piece.offset} of {piece.path} are not those that were packed "
                f"(CRC-32 {zlib.crc32(data):08x}, expected {piece.crc32:08x}); fetch or pack the shard again"
            )
        return data

    def _open(self, path: Path) -> _Handle:
        with self._lock:
            found = self._handles.get(path)
            if found is not None:
                self._handles.move_to_end(path)
                return found
            name = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                _check(name, path, self._roots, self._closed)
                opened = self._handles[path] = _Handle(os.open(f"/proc/self/fd/{name}", os.O_RDONLY | os.O_CLOEXEC))
            finally:
                os.close(name)
            if len(self._handles) > _MOST_OPEN:
                self._handles.popitem(last=False)  # closed once no thread reads from it
            return opened


class _Handle:
    """An open file that is closed when nobody knows it any more."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turn errors of the system into those of an item."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise FetchRejected(f"file.unreadable: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FetchRejected(f"file.unreadable: {str(path)!r} is not a path: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FetchRejected(
                f"file.unreadable: {str(path)[:100]}... cannot be read: its path of {len(os.fsencode(path)):,} bytes, or a "
                "name in it, is longer than the system takes (4,096 and 255); move or rename it"
            ) from None
        raise FetchFailed(f"file.failed: {path} cannot be read: {error}") from None


def _open_and_closed(folders: Sequence[str] | None) -> tuple[list[str] | None, list[str]]:
    """Return the folders in which files may be, or None, and those of the system in which they may not."""
    roots = None if folders is None else [os.path.realpath(folder) for folder in folders]
    closed = [place for place in _OF_THE_SYSTEM if not any(_is_in(root, [place]) for root in roots or ())]
    return roots, closed


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
    """Return whether a path is one of some folders or inside of one; all are absolute and have no `..`."""
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _read(handle: int, path: Path, max_bytes: int) -> bytes:
    number = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Asking for max_bytes at once would allocate as much for each file.
        size = min(os.fstat(number).st_size, max_bytes)
        data = _read_to(number, size + 1)
        if size < len(data) <= max_bytes:  # it grew, or is of a kind that does not tell its size
            data += _read_to(number, max_bytes + 1 - len(data))
    finally:
        os.close(number)
    if len(data) > max_bytes:
        raise FetchRejected(f"file.too_large: {path} is larger than max_bytes = {max_bytes}")
    return data


def _read_to(number: int, length: int) -> bytes:
    """Return the next bytes of an open file, fewer at its end. Raw, as a buffered file costs more to make than to read."""
    data = os.read(number, length)
    while data and len(data) < length and (more := os.read(number, length - len(data))):
        data += more
    return data
