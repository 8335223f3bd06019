"""A file to which records are appended, one line of JSON each, by one process at a time.

    {"checkpoint":1,...}       the header: what the rest is about
    {"began":1763..., ...}     records, in the order of their being written

Each record is one write, so a kill leaves at most the last line unfinished, and that is cut off when the file is opened
again. After a power cut more may be missing or damaged: damaged records are left out, and counted. The lock ends with the
process, however it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

logger = logging.getLogger("headrace")


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
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _take_lock(self._file)
            content = _whole_lines(self._file)
        except BaseException:
            os.close(self._file)
            raise
        records = [_decoded(line) for line in content.splitlines()]
        self.header: dict[str, Any] | None = records[0] if records else None
        self.records = [record for record in records[1:] if record is not None]
        self.num_damaged = records.count(None)

    def begin(self, header: dict[str, Any]) -> None:
        """Forget what is in it and write a header, which is on disk when this returns."""
        os.ftruncate(self._file, 0)
        self.header, self.records, self.num_damaged = header, [], 0
        self.must_append(header)
        os.fsync(self._file)
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
        line = msgspec.json.encode(record) + b"\n"
        with self._lock:
            if self._file < 0:
                return  # a worker that was left behind
            size = os.fstat(self._file).st_size
            if os.write(self._file, line) != len(line):
                os.ftruncate(self._file, size)
                raise OSError("no space for the whole record")

    def close(self) -> None:
        """Write it to disk and let go of the lock."""
        with self._lock:
            if self._file >= 0:
                try:
                    os.fsync(self._file)
                finally:
                    os.close(self._file)
                    self._file = -1


def _take_lock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Locked(error.errno, "another process has it open") from None


def _whole_lines(file: int) -> bytes:
    """Return the content up to the last line that was ended, and cut off the rest."""
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        content = reader.read()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.ftruncate(file, end)
    return content[:end]


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if isinstance(record, dict) else None
