"""Faults of memory, disk and logs: pages taken away (F27), files read cold from a slow disk (F28), logging (F33, F45).

F27, F28 and F33 wait for the machine's own disk, in the page faults and system calls that the real trouble has; nothing sleeps.
How much of it an item does follows from a time, so that a dose means the same on a fast disk and a slow one. F45 writes to a
pipe whose reader takes its time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import logging
import mmap
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault

_FAULTS_SECONDS = 0.008
_READS_SECONDS = 0.008
_LOG_SECONDS = 0.006
_RECORD_SECONDS = 0.006
_FILE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_PAGES = 16
"""Touched between two looks at the clock."""
_MADV_PAGEOUT = 21
"""Linux 5.4: take these pages away now, as a memory limit would make the kernel do; see madvise(2)."""
_RECORD = b"2026-01-01 00:00:00 DEBUG preprocess: one more record that nobody will read\n" * 4


@dataclass(slots=True)
class Scratch:
    """Files on the disk of the temporary folder, there for the length of a `with` block.

    Attributes:
        folder: Where they are; set on entering.
    """

    folder: Path = field(default_factory=Path)

    @property
    def large_file(self) -> Path:
        """The path of 64 MB of random bytes."""
        return self.folder / "data"

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Make the folder, and remove it with all that is in it."""
        with tempfile.TemporaryDirectory(prefix="headrace-scratch-") as folder:
            self.folder = Path(folder)
            yield

    @contextlib.contextmanager
    def there_with_file(self) -> Iterator[None]:
        """Do the same, with the large file in it."""
        with self.there():
            with self.large_file.open("wb") as file:
                for _ in range(_FILE_BYTES // _CHUNK_BYTES):
                    file.write(random.randbytes(_CHUNK_BYTES))
                os.fsync(file.fileno())  # what is written later would be found in the run
            yield


class OpenFile:
    """A file descriptor that is closed when nobody holds this any more: workers do not say when they have ended.

    Args:
        path: Of the file.
        flags: As `os.open` takes them.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.descriptor = os.open(path, flags)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def paged_out(scratch: Scratch, seconds: float, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call before which data that should be in memory, such as weights, has to be read in again, page by page.

    Args:
        scratch: Where the data lies.
        seconds: How long page faults go on before each call.
        call: What follows.
    """
    file = OpenFile(scratch.large_file, os.O_RDWR)  # the kernel pages out files only for those who may write them
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    mapping = mmap.mmap(file.descriptor, _FILE_BYTES, prot=mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    places = random.Random(threading.get_ident())

    def before(value: Any) -> Any:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            _touch(file, mapping, places.randrange(_FILE_BYTES // mmap.PAGESIZE - _PAGES) * mmap.PAGESIZE)
        return call(value)

    return before


def _touch(file: OpenFile, mapping: mmap.mmap, offset: int) -> None:
    length = _PAGES * mmap.PAGESIZE
    with memoryview(mapping) as view:
        hashlib.sha256(view[offset : offset + length])  # one major fault for each page, without the GIL
    # Read again and again, pages count as in use: that they come back soon is what the kernel calls memory pressure.
    for _ in range(3):
        os.pread(file.descriptor, length, offset)
    mapping.madvise(_MADV_PAGEOUT, offset, length)


def cold_reads(scratch: Scratch, seconds: float, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call before which a part of a large file is read from the disk itself, past the page cache.

    Args:
        scratch: Where the file lies.
        seconds: How long reading goes on before each call.
        call: What follows.
    """
    file = _open_direct(scratch.large_file)
    buffer = mmap.mmap(-1, _CHUNK_BYTES)  # reading past the cache wants aligned memory
    places = random.Random(threading.get_ident())

    def before(value: Any) -> Any:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            offset = places.randrange(_FILE_BYTES // _CHUNK_BYTES) * _CHUNK_BYTES
            os.preadv(file.descriptor, [buffer], offset)
            os.posix_fadvise(file.descriptor, offset, _CHUNK_BYTES, os.POSIX_FADV_DONTNEED)
        return call(value)

    return before


def _open_direct(path: Path) -> OpenFile:
    try:
        return OpenFile(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # some file systems read through the cache only; dropping what was read does nearly the same
        return OpenFile(path, os.O_RDONLY)


def logged(scratch: Scratch, seconds: float, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call after which records are logged, each of them forced to the disk.

    Args:
        scratch: Where each worker has a log of its own.
        seconds: How long logging goes on after each call.
        call: What comes before.
    """
    log = OpenFile(scratch.folder / f"{threading.get_ident()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def after(value: Any) -> Any:
        result = call(value)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            os.write(log.descriptor, _RECORD)
            os.fsync(log.descriptor)
        return result

    return after


@dataclass(slots=True)
class SlowReader:
    """A log handler whose records go through a pipe to somebody who reads them slowly.

    Args:
        seconds: Between two records that are read.
    """

    seconds: float
    handler: logging.Handler = field(default_factory=logging.NullHandler)

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Open the pipe, and close it at the end, after which the reader ends too."""
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)  # else it would take all records of a short run
        reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        with os.fdopen(writing, "w") as stream:
            self.handler = logging.StreamHandler(stream)
            reader.start()
            yield
        reader.join()

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while pipe.read(len(_RECORD)):
                time.sleep(self.seconds)


def logged_to(reader: SlowReader, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call after which a record is logged, under the handler's lock as all records are."""

    def after(value: Any) -> Any:
        result = call(value)
        reader.handler.handle(logging.LogRecord("preprocess", logging.DEBUG, "", 0, _RECORD.decode(), None, None))
        return result

    return after


def _page_faults(case: Case, dose: float) -> Case:
    scratch = Scratch()
    faulting = functools.partial(paged_out, scratch, _FAULTS_SECONDS * dose)
    return case.around("preprocess", faulting).with_beside(scratch.there_with_file)


def _slow_files(case: Case, dose: float) -> Case:
    scratch = Scratch()
    reading = functools.partial(cold_reads, scratch, _READS_SECONDS * dose)
    return case.around("fetch", reading).with_beside(scratch.there_with_file)


def _forced_log(case: Case, dose: float) -> Case:
    scratch = Scratch()
    forced = functools.partial(logged, scratch, _LOG_SECONDS * dose)
    return case.around("preprocess", forced).with_beside(scratch.there)


def _log_to_slow_reader(case: Case, dose: float) -> Case:
    reader = SlowReader(_RECORD_SECONDS * dose)
    return case.around("preprocess", functools.partial(logged_to, reader)).with_beside(reader.there)


FAULTS = (
    Fault(
        id="F27",
        title="pages that preprocess needs are taken away again and again, as by a memory limit",
        dose=f"time in page faults per item, from {_FAULTS_SECONDS * 1e3:g} ms",
        applies_to=("decode_heavy", "python_preprocess"),
        inject=_page_faults,
    ),
    Fault(
        id="F28",
        title="files read cold, from the disk itself",
        dose=f"time that reading takes per item, from {_READS_SECONDS * 1e3:g} ms",
        applies_to=("decode_heavy", "python_preprocess"),
        inject=_slow_files,
    ),
    Fault(
        id="F33",
        title="a log that is forced to the disk for each record",
        dose=f"time that logging takes per item, from {_LOG_SECONDS * 1e3:g} ms",
        applies_to=("decode_heavy", "python_preprocess"),
        inject=_forced_log,
    ),
    Fault(
        id="F45",
        title="a log that goes through a pipe whose reader is slow",
        dose=f"time that the reader takes for a record, from {_RECORD_SECONDS * 1e3:g} ms",
        applies_to=("decode_heavy", "python_preprocess"),
        inject=_log_to_slow_reader,
    ),
)
