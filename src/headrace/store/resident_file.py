"""Reads a small file that lies in memory, without letting other threads at the GIL.

Python lets go of the GIL at each call of the system: to open, to read, to close. Where many threads work, each time another
one takes it, and getting it back costs more than all of these calls. They wait for nothing if the file's name and its pages
are in memory; Linux can be asked to give up otherwise, and whoever asked then reads the file as usual.

References:
    Linux openat2(2): RESOLVE_CACHED, since 5.12; preadv2(2): RWF_NOWAIT.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

#: Reading more would hold up other threads for longer than it saves.
_MOST_BYTES = 1 << 18
_OPENAT2, _AT_FDCWD, _RESOLVE_CACHED, _NOWAIT = 437, -100, 0x20, 8


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_HOW = _How(os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0, _RESOLVE_CACHED)
_HOW_AT, _HOW_SIZE = ctypes.addressof(_HOW), ctypes.sizeof(_HOW)


@functools.cache
def _library() -> tuple[Any, Any, Any, Any]:
    """Return syscall, lseek, preadv2 and close of the C library, called with the GIL."""
    library = ctypes.PyDLL(None)
    wide, place = ctypes.c_long, ctypes.c_void_p
    library.syscall.argtypes, library.syscall.restype = (wide, wide, ctypes.c_char_p, place, wide), wide
    library.lseek.argtypes, library.lseek.restype = (ctypes.c_int, wide, ctypes.c_int), wide
    library.preadv2.argtypes = (ctypes.c_int, place, ctypes.c_int, wide, ctypes.c_int)
    library.preadv2.restype = wide
    library.close.argtypes = (ctypes.c_int,)
    return library.syscall, library.lseek, library.preadv2, library.close


def read_resident(path: bytes) -> bytearray | None:
    """Return the content of a file; None if it is large, is not all in memory, or cannot be read in this way."""
    try:
        syscall, lseek, preadv2, close = _library()
    except AttributeError:  # another C library
        return None
    handle = syscall(_OPENAT2, _AT_FDCWD, path, _HOW_AT, _HOW_SIZE)
    if handle < 0:
        return None
    try:
        size = lseek(handle, 0, os.SEEK_END)
        if not 0 < size <= _MOST_BYTES:
            return None
        content = bytearray(size)
        part = _Part(ctypes.addressof(ctypes.c_char.from_buffer(content)), size)
        return content if preadv2(handle, ctypes.addressof(part), 1, 0, _NOWAIT) == size else None
    finally:
        close(handle)
