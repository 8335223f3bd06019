"""A cache in a folder, for all processes of this machine: never a wrong byte, never more than its limit.

    FOLDER/headrace-cache-1/        all that it writes; nothing beside it is ever touched
        headrace-cache              says that the folder is one: without it a folder that is not empty is refused
        ab/cdef...                  an entry, named by its key: a line of JSON (kind, shape, length, CRC-32, key), the content
        tmp/...                     entries that are being written, each locked by who writes it
        works/89abcdef              a file for each kind of work, written when a run first finds something of it
        usage                       bytes in use, with a checksum; changed under its lock
        users                       locked by all who use it
        claims                      one byte per key, locked by who makes it; see `single_flight`

How this works. Room is taken in `usage` before a byte is written, for several entries at a time, and an entry appears by being
linked. So a process that is killed leaves at most room that nobody uses and a file in `tmp` without a lock; whoever opens the
folder next removes the file, and whoever opens it alone counts again, as does whoever finds `usage` damaged. Each entry is
checked when it is read: what a power cut or a worn disk leaves is removed, and counts as missing. A full disk turns writing
off, and reading goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import random
import re
import stat
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import SettingsError
from headrace.store.admission import Admission
from headrace.store.cache_key import is_of_other_work
from headrace.store.memory_cache import size_of
from headrace.store.resident_file import read_resident
from headrace.store.single_flight import SingleFlight

logger = logging.getLogger("headrace")

#: Of the entries' form. 1: 2026-11, first.
_VERSION = 1
#: Bytes in use, and the checksum of these eight bytes.
_USAGE = struct.Struct("<QI")
#: Of the limit, added where a damaged `usage` is counted again: others may have taken room that no file shows yet.
_UNSEEN_PART = 16
#: Left free on the disk: this, or a twentieth of it where that is less.
_LEAST_FREE = 1 << 30
_BLOCK = 4_096
#: Taken at a time beyond what is written: this, or so small a part of the limit, since a kill leaves it taken until somebody
#: opens the folder alone. Each taking has four calls of the system, and each of them lets other threads at the GIL.
_ROOM_AHEAD, _ROOM_PART = 1 << 20, 4_096
#: Of an entry: one call of the system reads it.
_LARGEST = 1 << 30
#: Files have times that are this much too early at most.
_CLOCK_STEP_NS = 20_000_000
_OWN = f"headrace-cache-{_VERSION}"
_MARK = "headrace-cache"
#: What is removed has such a name: of a folder of entries, of an entry, and of one that is being written.
_FOLDER_NAME = re.compile(r"[0-9a-f]{2}")
_ENTRY_NAME = re.compile(r"[0-9a-f]{62}")
_TEMPORARY_NAME = re.compile(r"[0-9]+-[0-9]+-[0-9a-f]{8}")
_number = itertools.count()


class _Head(msgspec.Struct, array_like=True):
    """The first line of an entry."""

    version: int
    key: str
    kind: str
    """A dtype, or empty for bytes."""
    shape: list[int]
    length: int
    crc32: int
    note: Any


_encode_head = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode


class DiskCache:
    """Keeps bytes and arrays in a folder; any thread, any process of this machine.

    Args:
        folder: Created if missing; only its owner may write into it. What it holds beside the cache stays as it is.
        limit_bytes: Of all entries together, in whole blocks of 4 KiB as disks count.

    Raises:
        SettingsError: If the folder cannot be used.

    Attributes:
        flights: Who makes what is missing.
        is_off: Whether writing was given up.
        num_damaged: Entries that were not what was written, and were removed.
    """

    is_slow = True

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = own = folder / _OWN
        self.is_off = False
        self.num_damaged = 0
        self._limit = limit_bytes
        self._room = 0  # taken in `usage`, and not written yet
        self.begin()
        # Of what is in memory: whoever calls the system under it keeps all threads waiting.
        self._lock = threading.Lock()
        self._usage_lock = threading.Lock()
        self._admission = Admission(limit_bytes)
        try:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            for one in (folder, own):
                _refuse_others(one)
            _mark(own)
            for name in ("tmp", "works"):
                (own / name).mkdir(mode=0o700, exist_ok=True)
            self._open()
        except OSError as error:
            raise SettingsError(f"the cache {folder} cannot be used: {error.strerror or error}") from None
        self.flights = SingleFlight(own / "claims")

    def begin(self) -> None:
        """Begin another run: entries of other work that nobody uses from now on may go."""
        self._began_ns = time.time_ns() - _CLOCK_STEP_NS
        self._has_stale = True
        self._used_works: set[bytes] = set()

    def _open(self) -> None:
        self._users = os.open(self.folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._usage, self._process = self._open_usage(), os.getpid()
        with self._locked():
            self._remove_dead()
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                self._write_usage(self._count())
            fcntl.flock(self._users, fcntl.LOCK_SH)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            if self._own_room():
                self._give_back(0)
        for name in ("_users", "_usage"):
            with contextlib.suppress(AttributeError, OSError):
                os.close(getattr(self, name))

    @property
    def num_bytes(self) -> int:
        """Bytes in use, as all processes count them: with the room that others took ahead."""
        with self._locked():
            return self._read_usage() - self._own_room()

    def get(self, key: bytes) -> tuple[Any, Any] | None:
        """Return a value and what was noted with it; None if it is not there, or was not what was written."""
        path = self._path(key)
        content = read_resident(os.fsencode(path))
        found = None if content is None else _decode(content, key)
        if content is None or found is None:  # what is wrong is found again
            content = _read_entry(path)
            if content is None:
                return None
            found = _decode(content, key)
        if found is None:
            self.num_damaged += 1
            logger.warning("the cache entry %s is not what was written; it is removed", path)
            self._remove(path, len(content))
            return None
        self._note_use(key, path)
        with self._lock:
            self._admission.follow(key, _blocks(len(content)))
        return found

    def _note_use(self, key: bytes, path: str) -> None:
        """Note for who makes room that an entry was used; only its work where none goes by age, as a note takes a write."""
        work = key[-4:]
        with contextlib.suppress(OSError):
            if self._admission.evicts:
                os.utime(path, follow_symlinks=False)
            elif work not in self._used_works:
                self._used_works.add(work)
                (self.folder / "works" / work.hex()).touch(mode=0o600)

    def put(self, key: bytes, value: Any, note: Any) -> bool:
        """Keep a value that was looked up in vain, if there is room; return whether it is kept."""
        plain_size = size_of(value)
        if self.is_off or plain_size is None or plain_size >= _LARGEST:
            return False
        parts = _encode(key, value, note)
        size = sum(len(part) for part in parts)
        with self._lock:
            self._admission.follow(key, _blocks(size))
        try:
            return self._write(key, parts, size) or os.path.exists(self._path(key))
        except OSError as error:
            self._turn_off(error)
            return False

    def _write(self, key: bytes, parts: list[Any], size: int) -> bool:
        if not self._reserve(_blocks(size), key):
            return False
        temporary = f"{self.folder}/tmp/{os.getpid()}-{next(_number)}-{random.getrandbits(32):08x}"
        is_kept = False
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                _write_all(handle, parts)
                is_kept = _link(temporary, self._path(key))
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                os.close(handle)
        finally:
            if not is_kept:
                with self._lock:
                    self._own_room(_blocks(size))
        return is_kept

    def _reserve(self, size: int, key: bytes) -> bool:
        """Take room for a key, making some where that may be; return whether there is."""
        if size > self._limit:
            return False
        with self._lock:
            if self._own_room() >= size:
                self._room -= size
                return True
        self._check_disk(size)
        ahead = min(_ROOM_AHEAD, self._limit // _ROOM_PART // _BLOCK * _BLOCK)
        for _ in range(64):
            with self._locked():
                used = self._read_usage()
                with self._lock:
                    # What this process took ahead is its own to use, also where it is too little by itself.
                    own = min(size, self._room)
                    self._room -= own
                more = size - own
                if used + more <= self._limit:
                    taken = min(more + ahead, self._limit - used)
                    self._write_usage(used + taken)
                    own = taken - more
                with self._lock:  # to use by others only once it is taken
                    self._room += own
                if used + more <= self._limit:
                    return True
            if not self._evict(key):
                return False
        return False

    def _own_room(self, more: int = 0) -> int:
        """Return the room that this process has taken ahead, with what is added to it; under the lock of the threads."""
        if self._process == os.getpid():  # a fork's parent keeps the room
            self._room += more
            return self._room
        return 0

    def _check_disk(self, size: int) -> None:
        state = os.statvfs(self.folder)
        least = min(_LEAST_FREE, state.f_blocks * state.f_frsize // 20)
        if state.f_bavail * state.f_frsize - size < least:
            raise OSError(errno.ENOSPC, f"less than {least:,} bytes would stay free on its disk")

    def _evict(self, key: bytes) -> bool:
        """Remove what makes room for a key; return whether there was something."""
        # What an edit of the program left behind goes first, whatever the policy.
        if self._has_stale and self._evict_oldest(lambda used_ns, path: self._is_stale(used_ns, path, key)):
            return True
        self._has_stale = False
        return self._admission.evicts and self._evict_oldest(lambda used_ns, path: True)

    def _is_stale(self, used_ns: int, path: str, key: bytes) -> bool:
        """Return whether an entry is of other work than a key's, and nobody used that work since the run began."""
        work = path[-8:]
        if used_ns >= self._began_ns or not is_of_other_work(bytes.fromhex(work), key):
            return False
        try:
            return os.stat(f"{self.folder}/works/{work}").st_mtime_ns < self._began_ns
        except OSError:
            return True

    def _evict_oldest(self, may_go: Callable[[int, str], bool]) -> bool:
        """Remove of a folder drawn by lot what was used longest ago; return whether there was one that may go."""
        folders = list(_folders_in(self.folder, _FOLDER_NAME))
        random.shuffle(folders)
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):  # others remove, too
                found = [(one.stat(), one.path) for one in _files_in(folder, _ENTRY_NAME)]
                found = [(state, path) for state, path in found if may_go(state.st_mtime_ns, path)]
                if found:
                    state, path = min(found, key=lambda pair: pair[0].st_mtime_ns)
                    return self._remove(path, state.st_size)
        return False

    def _remove(self, path: str, size: int) -> bool:
        try:
            os.unlink(path)
        except OSError:
            return False
        self._give_back(_blocks(size))
        return True

    def _give_back(self, size: int) -> None:
        """Give back what an entry took, and what was taken ahead."""
        with self._locked():
            with self._lock:
                room, self._room = self._room, 0
            self._write_usage(max(0, self._read_usage() - size - room))

    def _turn_off(self, error: OSError) -> None:
        if not self.is_off:
            self.is_off = True
            logger.error(
                "the cache %s takes no more (%s); the run goes on, and reads what is in it", self.folder, error.strerror
            )

    def _remove_dead(self) -> None:
        """Remove what killed processes were writing; what others write now is locked."""
        for one in _files_in(self.folder / "tmp", _TEMPORARY_NAME):
            with contextlib.suppress(OSError):
                handle = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(one.path)
                finally:
                    os.close(handle)

    def _entries(self) -> Iterator[tuple[str, int]]:
        """Yield path and size of each entry."""
        for folder in _folders_in(self.folder, _FOLDER_NAME):
            for one in _files_in(folder, _ENTRY_NAME):
                with contextlib.suppress(FileNotFoundError):  # others remove, too
                    yield one.path, one.stat().st_size

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold `usage` among the threads and processes."""
        with self._usage_lock:
            if self._process != os.getpid():  # after a fork the open file, and its lock, would be the parent's
                self._usage, self._process, self._room = self._open_usage(), os.getpid(), 0
            fcntl.flock(self._usage, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._usage, fcntl.LOCK_UN)

    def _open_usage(self) -> int:
        return os.open(self.folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _read_usage(self) -> int:
        found = os.pread(self._usage, _USAGE.size, 0)
        if len(found) == _USAGE.size:
            used, crc32 = _USAGE.unpack(found)
            if zlib.crc32(found[:8]) == crc32:
                return int(used)
        logger.warning("the cache %s: its file `usage` is damaged; what is there is counted again", self.folder)
        used = self._count() + self._limit // _UNSEEN_PART
        self._write_usage(used)
        return used

    def _write_usage(self, used: int) -> None:
        written = used.to_bytes(8, "little")
        os.pwrite(self._usage, written + zlib.crc32(written).to_bytes(4, "little"), 0)

    def _count(self) -> int:
        return sum(_blocks(size) for _, size in self._entries())

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self.folder}/{name[:2]}/{name[2:]}"


def _read_entry(path: str) -> bytearray | None:
    """Return what an entry's file holds; None if there is none. One that cannot be read is empty: not what was written."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        content = bytearray(os.fstat(handle).st_size)
        os.preadv(handle, [content], 0)  # what is missing has no right checksum
        return content
    except OSError:
        return bytearray()
    finally:
        os.close(handle)


def _link(temporary: str, path: str) -> bool:
    """Give what was written its name; return whether it has it.

    Not renamed over one that is there: its bytes would be counted twice.
    """
    for _ in range(2):
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except FileNotFoundError:  # no folder yet; or whoever opens the cache took the file for one of the dead
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o700)
        else:
            return True
    return False


def _refuse_others(folder: Path) -> None:
    """Refuse a folder into which somebody else may write."""
    found = folder.lstat() if folder.name == _OWN else folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or not stat.S_ISDIR(found.st_mode):
        raise SettingsError(
            f"the cache {folder} can be written by others, who could put anything into it; take a folder of your own "
            f"(chmod go-w {folder})"
        )


def _mark(own: Path) -> None:
    """Say in a folder that it is a cache; refuse one that is something else."""
    mark = own / _MARK
    if not mark.is_file():
        names = set(os.listdir(own))
        # Another process may have marked it meanwhile, and gone on.
        if names and not mark.is_file():
            raise SettingsError(
                f"{own} is not a cache of headrace (it holds {min(names)} and no file {_MARK}), so that nothing in it may be "
                "removed; take another folder for the cache, or move that one away"
            )
    mark.touch(mode=0o600)


def _folders_in(folder: Path, name: re.Pattern[str]) -> list[Path]:
    return [
        Path(one.path) for one in os.scandir(folder) if name.fullmatch(one.name) and one.is_dir(follow_symlinks=False)
    ]


def _files_in(folder: Path, name: re.Pattern[str]) -> list[os.DirEntry[str]]:
    return [one for one in os.scandir(folder) if name.fullmatch(one.name) and one.is_file(follow_symlinks=False)]


def _blocks(size: int) -> int:
    """Return what a file takes on a disk."""
    return -(-size // _BLOCK) * _BLOCK


def _write_all(handle: int, parts: list[Any]) -> None:
    rest = [memoryview(part).cast("B") for part in parts if len(part)]
    while rest:
        done = os.writev(handle, rest)
        while rest and done >= len(rest[0]):
            done -= len(rest.pop(0))
        if done:
            rest[0] = rest[0][done:]


def _encode(key: bytes, value: Any, note: Any) -> list[Any]:
    """Return the parts of an entry."""
    is_array = isinstance(value, np.ndarray)
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if is_array else value
    head = _Head(
        *(_VERSION, key.hex(), value.dtype.str if is_array else "", list(value.shape) if is_array else []),
        *(len(content), zlib.crc32(content), note),
    )
    line = _encode_head(head)
    return [struct.pack("<II", len(line), zlib.crc32(line)), line, content]


def _decode(content: bytearray, key: bytes) -> tuple[Any, Any] | None:
    """Return what an entry holds; None if it is not what was written."""
    if len(content) < 8:
        return None
    length, crc32 = struct.unpack_from("<II", content)
    line = bytes(content[8 : 8 + length])
    if len(line) != length or zlib.crc32(line) != crc32:
        return None
    try:
        head = _decode_head(line)
    except msgspec.MsgspecError:
        return None
    body = memoryview(content)[8 + length :]
    if head.version != _VERSION or head.key != key.hex() or len(body) != head.length or zlib.crc32(body) != head.crc32:
        return None
    if not head.kind:
        return bytes(body), head.note
    # Of the bytearray, which nobody else has: it may be written into.
    return np.ndarray(head.shape, np.dtype(head.kind), body), head.note
