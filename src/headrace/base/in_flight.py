"""The messages that a worker process has in flight, in memory that outlives it.

How this works: the supervisor makes the table before it forks the worker; both then see the same pages. The worker alone
writes, from any of its threads, under a lock of its own; the supervisor looks at the counters while the worker lives, and
at the messages once it is dead. Nothing is written to a disk, and no call to the system is made: an entry costs some
microseconds, noting that a stage works on it less than one. With a file in memory (see `crash_recovery`) it outlives the
supervisor too.

    header   which layout this is, signs of life, and how many deliveries ended how
    slot     stages working on it | whether it was delivered | lengths | lent at | id | receipt
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.base.records import OutcomeKind

#: Messages in flight in one worker that can be told apart; those beyond are not entered. 5 MB, of which only what is used
#: takes memory.
NUM_SLOTS = 4096
# works, delivered, length of id (0: a free slot), length of receipt, lent at
_SLOT = struct.Struct("<B?HHxxd")
_ID_BYTES, _RECEIPT_BYTES = 208, 1056
_SLOT_BYTES = _SLOT.size + _ID_BYTES + _RECEIPT_BYTES
_KINDS = tuple(OutcomeKind)
#: Another one for each change of the layout: a table may be read by a newer headrace than the one that wrote it.
_LAYOUT = b"hrtable1"
_HEADER = struct.Struct(f"<8s{2 + len(_KINDS)}Q")  # layout, signs of life, news heard, deliveries by how they ended
_NUMBER = struct.Struct("<Q")
#: Slots of a file whose memory is reserved at once: 80 KB.
_SLOTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class InFlight:
    """One message that a worker had."""

    id: str
    receipt: str
    """Empty where it was too long to keep."""
    lent_at: float
    """Seconds on the host's monotonic clock."""
    in_work: bool
    """Whether a stage was working on it."""
    delivered: bool
    """Whether only the ack was missing."""


@dataclass(slots=True)
class InFlightPlace:
    """Where one message stands in a table."""

    slot: int | None
    """None: the table had no room, or the message has left."""


class InFlightTable:
    """The messages in flight in one worker process, and its signs of life; make it before the fork.

    Args:
        num_slots: Messages that have room.
        file: Made for the table, on a file system in memory: on a disk that stands still, so would whoever writes. None: it
            is gone with the last process that has it.

    Raises:
        OSError: If the file cannot be made.
    """

    def __init__(self, num_slots: int = NUM_SLOTS, *, file: Path | None = None) -> None:
        self._num_slots = num_slots
        num_bytes = _HEADER.size + num_slots * _SLOT_BYTES
        self._file = -1 if file is None else _make(file, num_bytes)
        self._close_file = weakref.finalize(self, os.close, self._file) if file is not None else None
        self._num_reserved = num_slots if file is None else 0
        self._memory = mmap.mmap(self._file, num_bytes)
        _HEADER.pack_into(self._memory, 0, _LAYOUT, *[0] * (2 + len(_KINDS)))
        self._lock = threading.Lock()
        self._free = list(range(num_slots - 1, -1, -1))

    def enter(self, message_id: str, receipt: str, lent_at: float) -> InFlightPlace:
        """Enter a message that was just received."""
        encoded = message_id.encode(errors="surrogateescape")
        with self._lock:
            slot = self._free.pop() if self._free and 0 < len(encoded) <= _ID_BYTES else None
            if slot is not None and slot >= self._num_reserved and not self._reserve():
                self._free.append(slot)
                slot = None
            if slot is not None:
                self._write(slot, encoded, receipt, lent_at)
        return InFlightPlace(slot)

    def work(self, place: InFlightPlace, change: int) -> None:
        """Note that one more stage works on the message (1) or one less (-1); any thread."""
        with self._lock:
            if place.slot is not None:
                at = _find_offset(place.slot)
                # A fan-out has many of one job in work; beyond 255 it stays in work until it leaves, which errs safely.
                works = self._memory[at]
                self._memory[at] = works if works == 255 else max(0, works + change)

    def renew(self, place: InFlightPlace, message_id: str, receipt: str, lent_at: float) -> None:
        """Note that the message was lent again."""
        with self._lock:
            if place.slot is not None:
                self._write(place.slot, message_id.encode(errors="surrogateescape"), receipt, lent_at)

    def note_delivery(self, place: InFlightPlace) -> None:
        """Note that the message's result is delivered, and only the ack is missing."""
        with self._lock:
            if place.slot is not None:
                self._memory[_find_offset(place.slot) + 1] = 1

    def leave(self, place: InFlightPlace) -> None:
        """Take the message out."""
        with self._lock:
            if place.slot is not None:
                _SLOT.pack_into(self._memory, _find_offset(place.slot), 0, False, 0, 0, 0.0)
                self._free.append(place.slot)
                place.slot = None

    def beat(self) -> None:
        """Give a sign of life."""
        self._add(0)

    def note_news(self) -> None:
        """Note that one more piece of news was taken."""
        with self._lock:
            self._add(1)

    def count(self, kind: OutcomeKind) -> None:
        """Count how a delivery ended; any thread."""
        with self._lock:
            self._add(2 + _KINDS.index(kind))

    @property
    def num_beats(self) -> int:
        """Signs of life so far; 0: it is still opening its models."""
        return self._header()[0]

    @property
    def num_heard(self) -> int:
        """News taken so far."""
        return self._header()[1]

    def counts(self) -> Mapping[OutcomeKind, int]:
        """Return how many deliveries ended how."""
        return dict(zip(_KINDS, self._header()[2:], strict=True))

    def messages(self) -> list[InFlight]:
        """Return the messages in flight; for a dead worker exact except for an entry that it was writing."""
        return _messages(self._memory, self._num_slots)

    def close(self) -> None:
        """Give the memory back; a file stays."""
        self._memory.close()
        if self._close_file is not None:
            self._close_file()

    def _header(self) -> tuple[int, ...]:
        return _HEADER.unpack_from(self._memory, 0)[1:]

    def _add(self, index: int) -> None:
        at = len(_LAYOUT) + index * 8
        (number,) = _NUMBER.unpack_from(self._memory, at)
        _NUMBER.pack_into(self._memory, at, number + 1)

    def _reserve(self) -> bool:
        """Make sure of memory for some more slots: writing where there is none would kill the process (SIGBUS)."""
        try:
            os.posix_fallocate(self._file, _find_offset(self._num_reserved), _SLOTS_AT_ONCE * _SLOT_BYTES)
        except OSError:
            return False
        self._num_reserved += _SLOTS_AT_ONCE
        return True

    def _write(self, slot: int, message_id: bytes, receipt: str, lent_at: float) -> None:
        kept = receipt.encode()
        kept = kept if len(kept) <= _RECEIPT_BYTES else b""
        at = _find_offset(slot)
        text = at + _SLOT.size
        self._memory[text : text + len(message_id)] = message_id
        self._memory[text + _ID_BYTES : text + _ID_BYTES + len(kept)] = kept
        # Last, because it makes the entry count.
        works, delivered = self._memory[at], bool(self._memory[at + 1])
        _SLOT.pack_into(self._memory, at, works, delivered, len(message_id), len(kept), lent_at)


def read_regular(file: Path, most_bytes: int, *, follow: bool = False) -> bytes:
    """Return what is in a file that anybody may have put there; never waits, as reading a named pipe does.

    Args:
        file: Such as one of memory that outlives processes.
        most_bytes: That it may have.
        follow: Take the file that a link leads to.

    Raises:
        OSError: If it cannot be read, is a link or no regular file, or has more than most_bytes.
    """
    with open(open_regular(file, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)), "rb") as opened:
        num_bytes = os.fstat(opened.fileno()).st_size
        if num_bytes > most_bytes:
            raise OSError(f"{file} is no regular file of at most {most_bytes} bytes: {num_bytes} bytes")
        return opened.read(most_bytes)


def open_regular(file: Path, flags: int) -> int:
    """Return a descriptor of a file that anybody may have put there; never waits, as opening a named pipe does.

    Args:
        file: Such as one that several processes write to.
        flags: As of `os.open`.

    Raises:
        OSError: If it cannot be opened, or is no regular file.
    """
    descriptor = os.open(file, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder, device or pipe, and no regular file", str(file))
    return descriptor


def read_table(file: Path) -> list[InFlight]:
    """Return the messages that a dead process had in flight.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is damaged, or another version's.
    """
    content = read_regular(file, _find_offset(NUM_SLOTS))
    num_slots, rest = divmod(len(content) - _HEADER.size, _SLOT_BYTES)
    if rest or not content.startswith(_LAYOUT):
        raise ValueError(f"{file} is damaged or of another version of headrace: {len(content)} bytes, {content[:8]!r}")
    return _messages(content, num_slots)


def _messages(memory: mmap.mmap | bytes, num_slots: int) -> list[InFlight]:
    found = []
    for slot in range(num_slots):
        at = _find_offset(slot)
        works, delivered, id_length, receipt_length, lent_at = _SLOT.unpack_from(memory, at)
        if not id_length:
            continue
        at += _SLOT.size
        message_id = memory[at : at + id_length].decode(errors="surrogateescape")
        receipt = memory[at + _ID_BYTES : at + _ID_BYTES + receipt_length].decode()
        found.append(InFlight(message_id, receipt, lent_at, works > 0, delivered))
    return found


def _find_offset(slot: int) -> int:
    return _HEADER.size + slot * _SLOT_BYTES


def _make(file: Path, num_bytes: int) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _HEADER.size)
        os.ftruncate(descriptor, num_bytes)
    except OSError:
        os.close(descriptor)
        file.unlink()
        raise
    return descriptor
