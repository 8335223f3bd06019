"""One line of JSON per result.

Several processes may append to one file, and each may be killed at any moment. So a process locks the file (`flock`, which
ends with its holder) and checks how it ends before it writes a line: it first ends a line that another process left
unfinished. A line that could not be written completely is cut off again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from headrace.base.errors import DeliveryFailed, SettingsError
from headrace.base.named_paths import read_path
from headrace.base.records import Job
from headrace.delivery.encoding import encode, record_of

logger = logging.getLogger("headrace")


class _Line(msgspec.Struct):
    id: str


_id_decoder = msgspec.json.Decoder(_Line)


class JsonLines:
    """Appends `{"id", "task", "result"}` to a file, with `attributes` where a job has any.

    A line is durable once the operating system has it.

    It survives a crash of this process at any moment, but a crash of the machine only once the file is closed or the operating
    system has written it. A job delivered twice (delivery is at least once) gives two lines with one id, except in a resumed
    run, which reads the existing ids first. Other processes may write to the same file.

    Args:
        path: The file to append to; created with its folder if missing.
    """

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 1

    def __init__(self, path: str | Path) -> None:
        self.path = read_path(path, "path", addresses="; results go there by ObjectResults or SqlTable (guides)")
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._is_regular = True  # not a pipe, not a terminal
        self._end = 0  # of the last line that this process wrote

    @property
    def checkpoint(self) -> Path | None:
        """Folder for the state that resuming needs; None if lines cannot be read back."""
        if self.path.exists() and not self.path.is_file():
            return None  # a pipe, a terminal
        return self.path.with_name(f"{self.path.name}.checkpoint")

    @property
    def has_results(self) -> bool:
        """Whether the file holds anything."""
        return self.path.is_file() and self.path.stat().st_size > 0

    def mark(self) -> dict[str, Any]:
        """Return the position at which the results of a new run begin."""
        return {"offset": self.path.stat().st_size if self.path.exists() else 0}

    def recover(self, mark: Mapping[str, Any]) -> set[str]:
        """Return the ids of the results since a mark, and cut off a line that a killed process left unfinished.

        A complete line that cannot be read (after a power cut) is left unchanged and ignored.
        """
        offset = int(mark.get("offset", 0))
        found: set[str] = set()
        with self.path.open("rb+") as file, _FileLock(file):
            end = file.seek(0, os.SEEK_END)
            if end < offset:
                raise SettingsError(f"{self.path} has {end:,} bytes; it had {offset:,} when the run began")
            end = file.seek(offset)
            for line in file:
                if line.endswith(b"\n"):
                    end += len(line)
                    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
                        found.add(_id_decoder.decode(line).id)
            file.truncate(end)
        return found

    def open(self, context: Any) -> None:
        """Open the file, and end a line that a killed process left unfinished."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+", buffering=0)
            self._is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
            with _FileLock(self._file, complains=True):
                if _is_unfinished(self._file):
                    self._file.write(b"\n")
        except OSError as error:
            raise SettingsError(f"results file {self.path} cannot be written: {error}") from None

    def deliver(self, job: Job, result: Any) -> bool:
        """Write one line; see `protocols.Delivery.deliver`."""
        self._write(self.check(job, result) + b"\n")
        return True

    def deliver_many(self, results: Sequence[tuple[Job, Any]]) -> list[bool | Exception]:
        """Write all lines at once; see `protocols.DeliversMany`."""
        lines: list[bytes] = []
        # Only one line goes into a pipe as a whole, beside those of other processes.
        write = lines.append if self._is_regular else self._write

        def outcome(job: Job, result: Any) -> bool | Exception:
            try:
                write(self.check(job, result) + b"\n")
            except Exception as error:  # this result's alone
                return error
            return True

        outcomes = [outcome(job, result) for job, result in results]
        if lines:
            self._write(b"".join(lines))
        return outcomes

    def _write(self, lines: bytes) -> None:
        if self._file is None:
            raise RuntimeError("deliver() before open()")
        try:
            with self._lock, _FileLock(self._file):
                self._end = _append(self._file, lines, self._end)
        except OSError as error:
            raise DeliveryFailed(f"{self.path} cannot be written: {error.strerror or error}") from None

    def check(self, job: Job, result: Any) -> bytes:
        """Return a result's line, without its end; see `protocols.Checkable`."""
        return encode(record_of(job, result))

    def flush(self) -> None:
        """Do nothing: the file is not buffered."""

    def close(self) -> None:
        """Write the file to disk and close it."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # not what has a disk
                os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def _append(file: IO[bytes], lines: bytes, end_of_last: int) -> int:
    """Write lines, and return where they end; a file that ends with our last line is not read again to see how it ends."""
    end = os.fstat(file.fileno()).st_size
    if end != end_of_last and _is_unfinished(file):
        lines = b"\n" + lines
    if file.write(lines) != len(lines):
        file.truncate(end)
        raise OSError(errno.ENOSPC, "no space for the whole line")
    return end + len(lines)


def _is_unfinished(file: IO[bytes]) -> bool:
    """Return whether the file ends in the middle of a line."""
    status = os.fstat(file.fileno())
    return (
        stat.S_ISREG(status.st_mode) and status.st_size > 0 and os.pread(file.fileno(), 1, status.st_size - 1) != b"\n"
    )


class _FileLock:
    """Keeps other processes from writing to a file for the length of a `with` block; a pipe or a terminal is not locked.

    Args:
        file: Open.
        complains: Log where the file cannot be locked: some network file systems know no locks.
    """

    __slots__ = ("_complains", "_file", "_is_locked")

    def __init__(self, file: IO[bytes], *, complains: bool = False) -> None:
        self._file = file
        self._complains = complains
        self._is_locked = False

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._is_locked = True
        except OSError as error:
            if self._complains:
                logger.warning("%s cannot be locked (%s): let one process alone write to it", self._file.name, error)

    def __exit__(self, *_: object) -> None:
        if self._is_locked:
            fcntl.flock(self._file, fcntl.LOCK_UN)
