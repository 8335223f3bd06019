"""One shard while it grows: a tar file that is added to, and that a later process goes on with.

Members are gathered and written many at once: a call of the system and a step of the hash for each would take longer than what
they do. A member counts once the operating system has all of it. So a killed process leaves whole members and perhaps half of
one, which is cut off. A machine that lost its power may leave anything; so the name of an unfinished shard says since which
start of the machine it grows, and an older one is not believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from headrace.store.reading import read_chunks
from headrace.store.samples import Stored
from headrace.store.shard_index import Row
from headrace.store.shards import read_text, with_text
from headrace.store.tar_header import BLOCK, END, make_headers, padded
from headrace.store.tar_scan import Flaw, TarScan

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_PADDING = bytes(BLOCK)
#: Bytes that are gathered before they are written: what a core's cache holds.
_MOST_GATHERED = 1 << 20


def boot_mark() -> str:
    """Return a text that is another one after each start of the machine."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()[:8]
    except OSError:
        return "unknown"


class ShardWriter:
    """Adds members to a file, which is created if it is missing.

    Args:
        path: Of the unfinished shard.

    Attributes:
        rows: Of the members so far, those that were not written yet among them.
        size: Bytes so far, likewise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self.size = 0
        self._gathered: list[bytes] = []
        self._num_written = 0
        self._digest = hashlib.sha256()
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def recover(self) -> None:
        """Take in the members that are there, and cut off what is not whole. Text and checksum are read again."""
        for one in TarScan(self.handle):
            if isinstance(one, Flaw):
                break
            self._digest.update(os.pread(self.handle, one.offset - self.size, self.size))
            crc32 = 0
            for data in read_chunks(self.handle, one.length, one.offset):
                self._digest.update(data)
                crc32 = zlib.crc32(data, crc32)
            self._digest.update(_padding(one.length))
            self.rows.append(Row(with_text(Stored(one.name, one.offset, one.length, crc32), self.handle)))
            self.size = one.offset + padded(one.length)
        self._num_written = self.size
        os.ftruncate(self.handle, self.size)  # also makes the last member's padding whole, or takes an end's zeros away

    @property
    def has_unwritten(self) -> bool:
        """Whether members were added that the operating system does not have yet."""
        return self._num_written < self.size

    def append(self, name: str, data: bytes, source: str | None = None) -> Stored:
        """Add a member; return where it is, or will be: a small one is written by `write` or by a later call.

        Args:
            name: Of the member.
            data: Its bytes.
            source: What the item was called, where that is not the name.

        Raises:
            OSError: If it, where it is large, or those before it cannot be written; it was not added, and they are kept.
        """
        is_large = len(data) >= _MOST_GATHERED
        if is_large or self.size - self._num_written >= _MOST_GATHERED:
            self.write()
        headers, padding = make_headers(name, len(data)), _padding(len(data))
        if is_large:  # neither copied nor kept
            self._write([headers, data, padding])
        else:
            self._gathered += (headers, data, padding)
        stored = Stored(name, self.size + len(headers), len(data), zlib.crc32(data))
        self._note(stored, data, source)
        self.size += len(headers) + len(data) + len(padding)
        return stored

    def write(self) -> None:
        """Give all that was added to the operating system.

        Raises:
            OSError: If it takes not all; what was added is kept for the next call.
        """
        if self._gathered:
            self._write([b"".join(self._gathered)])
            self._gathered = []

    def _write(self, parts: list[bytes]) -> None:
        try:
            written = _write_all(self.handle, parts, self._num_written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.handle, self._num_written)
            raise
        for part in parts:
            self._digest.update(part)
        self._num_written = written

    def _note(self, stored: Stored, data: bytes, source: str | None) -> None:
        text = read_text(stored, data)
        if text is not None:
            stored = Stored(stored.name, stored.offset, stored.length, stored.crc32, text)
        self.rows.append(Row(stored, source))

    def name_sources(self, ids: Mapping[str, str]) -> None:
        """Note what the members that were recovered were called: {name: id}; those that are not in it keep their name."""
        for number, row in enumerate(self.rows):
            one = ids.get(row.stored.name, row.stored.name)
            self.rows[number] = Row(row.stored, None if one == row.stored.name else one)

    def end(self) -> str:
        """Write the mark of an end and see that all is on the disk; return the SHA-256 of the whole."""
        self.write()
        _write_all(self.handle, [END], self.size)
        os.fsync(self.handle)
        digest = self._digest.copy()
        digest.update(END)
        return digest.hexdigest()

    def clear(self) -> None:
        """Take all members out."""
        self.rows, self.size, self._digest = [], 0, hashlib.sha256()
        self._gathered, self._num_written = [], 0
        os.ftruncate(self.handle, 0)

    def close(self) -> None:
        """Let go of the file; what was not written is lost."""
        os.close(self.handle)


def _padding(length: int) -> bytes:
    return _NO_PADDING[: padded(length) - length]


def _write_all(handle: int, parts: list[bytes], offset: int) -> int:
    """Write parts one behind the other, and return where they end; raises OSError if the disk takes only some."""
    for part in parts:
        rest = memoryview(part)
        while rest:  # a full disk takes what it can, and says why at the next call; none takes more than 2 GiB at once
            done = os.pwritev(handle, [rest], offset)
            offset += done
            rest = rest[done:]
    return offset
