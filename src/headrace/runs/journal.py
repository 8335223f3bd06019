"""A file to which records are appended, one line of JSON each, by one process at a time.

    {"checkpoint":1,...}       the header: what the rest is about
    {"began":1763..., ...}     records, in the order of their being written

Each record is one write, so a kill leaves at most the last line unfinished, and that is cut off when the file is opened
again. A new journal replaces the old file as a whole, so that a kill loses nothing. After a power cut more
may be missing or damaged: damaged records are left out, and counted. The lock ends with the process, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.documents import decode_document

logger = logging.getLogger("headrace")


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Locked(OSError):
    """Another process has the journal open."""


class Journal:
    """An open journal, locked; thread-safe.

    Args:
        path: The file; made if missing, its folder must exist.

    Attributes:
        header: The first record; None where there is none yet, or where it cannot be read.
        records: The others as they were found.
        num_damaged: Lines that could not be read.

    Raises:
        Locked: If another process has it open.
        OSError: If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._complained = False
        self._file = os.open(path, _FLAGS, 0o644)
        try:
            _take_lock(self._file, path)
            content = _whole_lines(self._file)
        except BaseException:
            os.close(self._file)
            raise
        records = [_decode_record(line) for line in content.splitlines()]
        self.header: dict[str, Any] | None = records[0] if records else None
        self.records = [record for record in records[1:] if record is not None]
        self.num_damaged = records.count(None)

    def begin(self, header: dict[str, Any], records: Sequence[dict[str, Any]] = ()) -> None:
        """Put a header and records in the place of what is in it; they are on disk when this returns.

        Killed at any moment, this leaves the old content or the new one.

        Raises:
            OSError: If it cannot be written; the old content is left.
        """
        new = self.path.with_name(f"{self.path.name}.new")
        file = os.open(new, _FLAGS | os.O_TRUNC, 0o644)  # there after a kill; nobody else is here: we have the lock
        try:
            _take_lock(file, new)
            _write(file, b"".join(map(_line, (header, *records))))
            os.fsync(file)
            new.replace(self.path)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file = file
        self.header, self.records, self.num_damaged = header, list(records), 0
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def append(self, record: dict[str, Any]) -> None:
        """Write a record; what cannot be written is logged, once, and the run goes on: its item will be done again."""
        try:
            self.must_append(record)
        except OSError as error:
            if not self._complained:
                logger.error("%s cannot be written: %s; a resumed run will repeat some items", self.path, error)
            self._complained = True

    def must_append(self, record: dict[str, Any]) -> None:
        """Write a record.

        Raises:
            OSError: If it cannot be written; nothing of it is left.
        """
        with self._lock:
            if self._file >= 0:  # or a worker that was left behind
                _write(self._file, _line(record))

    def close(self) -> None:
        """Write it to disk and let go of the lock."""
        with self._lock:
            if self._file >= 0:
                try:
                    os.fsync(self._file)
                finally:
                    os.close(self._file)
                    self._file = -1


def _line(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _write(file: int, content: bytes) -> None:
    size = os.fstat(file).st_size
    if os.write(file, content) != len(content):
        os.ftruncate(file, size)
        raise OSError("no space for the whole record")


def _take_lock(file: int, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Locked(error.errno, "another process has it open") from None
    # Between our opening and our locking its holder may have put another in its place, which it still has, or taken it away.
    if not (path.exists() and os.path.samestat(os.fstat(file), path.stat())):
        raise Locked(errno.EWOULDBLOCK, "another process has just begun it anew")


def _whole_lines(file: int) -> bytes:
    """Return the content up to the last line that was ended, and cut off the rest."""
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        content = reader.read()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.ftruncate(file, end)
    return content[:end]


def _decode_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = decode_document(line, Any)
    except msgspec.DecodeError:
        return None
    return record if isinstance(record, dict) else None
