"""Reads parts of files whole: one call of the system gives at most 2 GiB, and on some file systems less than was asked for."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

#: Bytes that are read at once where nobody wants all of them.
_CHUNK = 16 << 20


def version_of(handle: int) -> tuple[int, int]:
    """Return size and time of the last change of a file: whether it was written to since."""
    found = os.fstat(handle)
    return found.st_size, found.st_mtime_ns


def changed(shard: str) -> str:
    """Return why a part without a checksum is refused: what is at its place now may be of something else."""
    return (
        f"tar.changed: {shard} was written to or replaced after it was listed, and has no index to compare the bytes with; "
        "start again, or make an index with `headrace pack SHARD --index`"
    )


def read_all(handle: int, length: int, offset: int) -> bytes:
    """Return bytes of a file; fewer where it ends."""
    data = os.pread(handle, length, offset)
    if len(data) == length:
        return data
    parts = [data]
    missing = length - len(data)
    while missing and (more := os.pread(handle, missing, offset + length - missing)):
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def read_chunks(handle: int, length: int, offset: int) -> Iterator[bytes]:
    """Yield bytes of a file in parts, without holding all of them; fewer where it ends."""
    end = offset + length
    while offset < end and (data := os.pread(handle, min(_CHUNK, end - offset), offset)):
        yield data
        offset += len(data)


def checksum(handle: int, length: int, offset: int) -> int:
    """Return the CRC-32 of bytes of a file."""
    found = 0
    for data in read_chunks(handle, length, offset):
        found = zlib.crc32(data, found)
    return found
