"""The recording of one process: blocks in files in memory, bounded, readable while it is written and after every kill.

How this works: a recording is a folder in `/dev/shm` with a few files. The writer appends blocks to the newest; when that is
full it begins another and removes the oldest, so that the whole never exceeds its bound. Nothing is ever changed in place: a
writer that is killed in the middle leaves one block that is cut off. Each block carries a checksum over itself and its header,
and each file begins with a block of the identity, so that every file can be read alone. A reader takes the blocks whose
checksums are right, looks for the next beginning after damage, and says how much it had to leave out.

    /dev/shm/headrace-recorder.UID / PID-TOKEN / 00000001.part | 00000002.part | ...

Files and not a mapping: where memory is short a write is refused with an error, and a store into a mapping kills the process.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from headrace.base.in_flight import read_regular

logger = logging.getLogger("headrace")

_MAGIC = b"hrF1"  # another one for each change of the layout
_MAGIC_OF_ALL = _MAGIC[:3]
_HEADER = struct.Struct("<4sBxxxIIQ")  # magic, kind, length, checksum, number
_CHECKSUM_AT = 12
_CHECKSUM = struct.Struct("<I")
#: Files of a recording, and those that are kept where memory is short.
_NUM_PARTS, _LEAST_PARTS = 8, 3
#: Of one block: what is larger was not written by us.
MOST_BYTES = 16 * 2**20
LEAST_SIZE = 2**20
_SHARE_OF_FREE = 4


class BlockKind(IntEnum):
    """What a block holds."""

    IDENTITY = 1
    SPANS = 2
    RESOURCES = 3
    EVENT = 4
    THREADS = 5
    STATES = 6
    ERROR = 7


@dataclass(frozen=True, slots=True)
class Block:
    """One block as it was written."""

    kind: int
    number: int
    content: bytes


@dataclass(slots=True)
class Blocks:
    """What could be read of a recording."""

    blocks: list[Block] = field(default_factory=list)
    damaged_bytes: int = 0
    """That belong to no block with a right checksum; the last block may have been cut off by a kill."""
    is_of_another_layout: bool = False
    """A file begins as those of another version of headrace do."""


class RingWriter:
    """Writes a recording; one thread at a time. Trouble with the memory never raises.

    Args:
        folder: Of the recording; made here, with its parent.
        most_bytes: Bound of all its files.

    Attributes:
        lost_blocks: That could not be written.
        problem: Why the last of them could not; empty if none was lost.

    Raises:
        OSError: If the folder cannot be made.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self.lost_blocks = 0
        self.problem = ""
        self._part_bytes = max(LEAST_SIZE, most_bytes) // _NUM_PARTS
        self._parts: list[Path] = []
        self._file = -1
        self._room = self._length = 0
        self._number = self._part_number = 0
        self._identity = b""
        folder.mkdir(mode=0o700)

    def identify(self, content: bytes) -> None:
        """Write who records what; also at the beginning of every file from now on."""
        if content != self._identity:
            self._identity = content
            self.append(BlockKind.IDENTITY, content)

    def append(self, kind: BlockKind, content: bytes) -> bool:
        """Write one block; return whether that was possible."""
        if len(content) + _HEADER.size > self._part_bytes:
            return self._lose(f"a block of {len(content):,} bytes is larger than a file of {self._part_bytes:,}")
        try:
            if len(content) + _HEADER.size > self._room:
                self._begin_part()
            self._write(kind, content)
        except OSError as error:
            # The newest matters most: the oldest makes room for what comes next, but never all that is there.
            if len(self._parts) > _LEAST_PARTS:
                self._drop_oldest()
            return self._lose(error.strerror or str(error))
        return True

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove the recording if nobody will ask for it."""
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)
        if remove:
            remove_recording(self.folder)

    def _begin_part(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        while len(self._parts) >= _NUM_PARTS:
            self._drop_oldest()
        self._part_number += 1
        path = self.folder / f"{self._part_number:08d}.part"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._parts.append(path)
        self._room, self._length = self._part_bytes, 0
        if self._identity:
            self._write(BlockKind.IDENTITY, self._identity)

    def _drop_oldest(self) -> None:
        self._parts.pop(0).unlink(missing_ok=True)

    def _write(self, kind: BlockKind, content: bytes) -> None:
        self._number += 1
        block = encode_block(kind, self._number, content)
        if (written := os.write(self._file, block)) != len(block):
            os.ftruncate(self._file, self._length)
            raise OSError(f"only {written} of {len(block)} bytes were taken: no memory is left")
        self._room -= len(block)
        self._length += len(block)

    def _lose(self, problem: str) -> bool:
        self.lost_blocks += 1
        if not self.problem:
            logger.warning(
                "the flight recorder lost a part: %s. The run goes on; free memory in %s, or give the recorder less "
                "(--recorder SIZE)",
                problem,
                self.folder.parent,
            )
        self.problem = problem
        return False


def encode_block(kind: int, number: int, content: bytes) -> bytes:
    """Return a block as it stands in a file."""
    header = _HEADER.pack(_MAGIC, kind, len(content), 0, number)
    checksum = zlib.crc32(content, zlib.crc32(header))
    return header[:_CHECKSUM_AT] + _CHECKSUM.pack(checksum) + header[_CHECKSUM_AT + 4 :] + content


def decode_blocks(content: bytes) -> Blocks:
    """Return the blocks of one file whose checksums are right, in order."""
    found, at = Blocks(), 0
    found.is_of_another_layout = content.startswith(_MAGIC_OF_ALL) and not content.startswith(_MAGIC)
    while at < len(content):
        block = _block_at(content, at)
        if block is not None:
            found.blocks.append(block)
            at += _HEADER.size + len(block.content)
            continue
        after = content.find(_MAGIC, at + 1)
        after = len(content) if after < 0 else after
        found.damaged_bytes += after - at
        at = after
    return found


def _block_at(content: bytes, at: int) -> Block | None:
    if len(content) - at < _HEADER.size:
        return None
    magic, kind, length, checksum, number = _HEADER.unpack_from(content, at)
    end = at + _HEADER.size + length
    if magic != _MAGIC or length > MOST_BYTES or end > len(content):
        return None
    payload = content[at + _HEADER.size : end]
    if content[at + 5 : at + 8] != b"\0\0\0":
        return None
    header = _HEADER.pack(magic, kind, length, 0, number)
    return Block(kind, number, payload) if zlib.crc32(payload, zlib.crc32(header)) == checksum else None


def read_blocks(folder: Path) -> Blocks:
    """Return what can be read of a recording, oldest first. Files that the writer removes meanwhile are left out.

    Raises:
        OSError: If the folder cannot be read.
    """
    found = Blocks()
    for path in sorted(path for path in folder.iterdir() if re.fullmatch(r"\d{8}\.part", path.name)):
        try:
            part = decode_blocks(read_regular(path, 2 * 2**30))
        except FileNotFoundError:
            continue
        found.blocks += part.blocks
        found.damaged_bytes += part.damaged_bytes
        found.is_of_another_layout |= part.is_of_another_layout
    return found


def remove_recording(folder: Path) -> None:
    """Remove a recording's files and its folder, and nothing else."""
    with suppress(OSError):
        for path in folder.glob("*.part"):
            path.unlink(missing_ok=True)
        folder.rmdir()


def limit_to_room(root: Path, most_bytes: int) -> int:
    """Return how many bytes a new recording may take: at most a quarter of what is free.

    Containers often have 64 MB there, and what makes jobs survive a kill lies there too.

    Raises:
        OSError: If that is less than a recording needs.
    """
    found = os.statvfs(root)
    free = found.f_bavail * found.f_frsize
    if free // _SHARE_OF_FREE < LEAST_SIZE:
        raise OSError(f"{root.parent} has {free:,} bytes free, and a recording takes at most a quarter of that")
    if free // _SHARE_OF_FREE < most_bytes:
        logger.info("the flight recorder takes %d bytes: %s has no more than %d free", free // 4, root.parent, free)
    return min(most_bytes, free // _SHARE_OF_FREE)


def own_root(parent: Path) -> Path:
    """Return the folder of this user's recordings, made if it was not there.

    Raises:
        OSError: If it cannot be made, or is not a folder of this user alone.
    """
    root = parent / f"headrace-recorder.{os.geteuid()}"
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{root} is not a folder of this user alone; remove it")
    return root


def folders_in(root: Path) -> Iterator[Path]:
    """Yield the recordings' folders, oldest first; links are none."""
    found = []
    with suppress(OSError):
        for path in root.iterdir():
            with suppress(OSError):  # another process removed it meanwhile
                status = path.lstat()
                found += [(status.st_mtime, path)] if stat.S_ISDIR(status.st_mode) else []
    yield from (path for _, path in sorted(found))
