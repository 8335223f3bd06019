"""Whether files are in the page cache, and how to get them out of it.

Nothing here changes a file: pages are asked after with `mincore` and let go with `posix_fadvise`. A file that was let go is
cold for this kernel; a virtual machine's host, a network file server and the disk itself may still hold it in their own memory.

References:
    Linux mincore(2): since 5.2 it tells the truth only of files that the caller owns or may write, and calls every page of
    others resident; these are left out here. posix_fadvise(2): POSIX_FADV_DONTNEED lets go of clean pages only, hence the
    fsync before it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np

from headrace.base.pieces import Piece

State = Literal["warm", "cold", "mixed"]
"""Of files: nearly all of their pages are in memory, nearly none, or some."""
_WARM, _COLD = 0.95, 0.05


@dataclass(frozen=True, slots=True)
class Residency:
    """How much of some files lies in memory."""

    share: float | None
    """Of their pages, 0 to 1; None if it could not be told, and `reason` says why."""
    num_files: int
    """Files that were looked at."""
    reason: str = ""


def state_of(share: float | None) -> State | None:
    """Return the name of how much of some files lies in memory; None where that is not known."""
    if share is None:
        return None
    return "warm" if share >= _WARM else "cold" if share <= _COLD else "mixed"


def file_of(payload: Any) -> Path | None:
    """Return the file of this machine that a payload names; None: it names none."""
    if isinstance(payload, Path):
        return payload
    if isinstance(payload, str) and payload[:5].lower() == "file:":
        return Path(unquote(urlsplit(payload).path))
    return None


def files_of(payloads: Iterable[Any]) -> list[Path]:
    """Return the files that payloads name, or lie in, each once, in order."""
    every = (payload.path if isinstance(payload, Piece) else file_of(payload) for payload in payloads)
    return list(dict.fromkeys(file for file in every if file is not None))


def residency(paths: Sequence[Path], sample: int = 200) -> Residency:
    """Return how much of some files lies in the page cache, or why that cannot be told.

    Args:
        paths: The files.
        sample: Look at so many of them at most, spread evenly over the list; >= 1.
    """
    if sample < 1:
        raise ValueError(f"sample must be at least 1, got {sample}")
    if not paths:
        return Residency(None, 0, "there are no files")
    step = max(1.0, len(paths) / sample)
    chosen = [paths[int(index * step)] for index in range(min(sample, len(paths)))]
    resident, total, num_files, reason = 0, 0, 0, "the files are empty"
    for path in chosen:
        try:
            pages = _pages(path)
        except OSError as error:
            reason = f"{path}: {error.strerror or error}"
            continue
        if pages is not None:
            num_files += 1
            resident += int(np.count_nonzero(pages & 1))
            total += len(pages)
    return Residency(resident / total, num_files) if total else Residency(None, 0, reason)


def warm(paths: Sequence[Path]) -> None:
    """Read files, so that they lie in the page cache. One that cannot be read is left alone: its fetch will tell."""
    buffer = bytearray(1 << 20)
    for path in paths:
        try:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        except OSError:
            continue


def evict(path: Path) -> None:
    """Ask the kernel to let go of a file's pages; whether it did is for `residency` to say.

    Raises:
        OSError: If the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def evict_all(paths: Iterable[Path]) -> None:
    """Ask the kernel to let go of files; one that cannot be opened is left alone: its fetch will tell."""
    for path in paths:
        with contextlib.suppress(OSError):
            evict(path)


def _pages(path: Path) -> np.ndarray | None:
    """Return one byte per page of a file, of which bit 0 says whether it is resident; None for an empty file.

    Raises:
        OSError: If the file cannot be opened or mapped, or the kernel would not tell the truth about it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_size == 0:
            return None
        if os.geteuid() not in (0, status.st_uid) and not os.access(path, os.W_OK, effective_ids=True):
            raise PermissionError(
                0, "the kernel tells only the owner of a file, or who may write it, what is in memory"
            )
        with mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            pages = np.zeros(-(-status.st_size // mmap.PAGESIZE), np.uint8)
            failed = _mincore()(view.ctypes.data, status.st_size, pages.ctypes.data)
            del view  # a mapping with a view of it cannot be closed
            if failed:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return pages
    except ValueError as error:  # mmap refuses what is no regular file
        raise OSError(0, str(error)) from None
    finally:
        os.close(descriptor)


@functools.cache
def _mincore() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mincore
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function
