"""A file that shows, after the end of a process, which items its workers had in flight.

How this works: each thread that works has a slot of its own and overwrites it whenever it takes items: one small write into
the page cache, which outlives a killed process (and not a power cut, after which nobody is to blame). A slot is not
cleared: readers leave out settled items.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.base.in_flight import read_regular
from headrace.base.observer import Observer

_SLOT_BYTES = 16_384
_LENGTH_BYTES = 4
#: Of a whole file: of thousands of threads.
_MOST_BYTES = 1 << 28


class InFlightFile(Observer):
    """Writes what each worker takes; thread-safe.

    Args:
        path: The file; emptied.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._slots = itertools.count()
        self._mine = threading.local()

    def stage_started(self, stage: str, item_ids: Sequence[str]) -> None:
        """Note the items in this thread's slot."""
        slot: _Slot | None = getattr(self._mine, "slot", None)
        if slot is None and (slot := self._open_slot()) is None:
            return
        with contextlib.suppress(OSError):  # a full disk: then nobody is suspected
            os.pwrite(slot.file, _encode_ids(item_ids), slot.offset)

    def _open_slot(self) -> _Slot | None:
        """Give this thread a slot and a descriptor of its own: a lock around each write would let threads wait for one another.

        None: the file is closed, or there are no more descriptors.
        """
        with self._lock, contextlib.suppress(OSError):  # no descriptor is left: then nobody is suspected
            if self._file < 0:
                return None
            self._mine.slot = slot = _Slot(os.dup(self._file), next(self._slots) * _SLOT_BYTES)
            return slot
        return None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


class _Slot:
    """The place of one thread; its descriptor is closed with the thread, so a worker left behind writes into no other file."""

    def __init__(self, file: int, offset: int) -> None:
        self.file = file
        self.offset = offset

    def __del__(self) -> None:
        os.close(self.file)


def _encode_ids(item_ids: Sequence[str]) -> bytes:
    content = msgspec.msgpack.encode(item_ids)
    while len(content) > _SLOT_BYTES - _LENGTH_BYTES:
        item_ids = item_ids[: len(item_ids) // 2]
        content = msgspec.msgpack.encode(item_ids)
    return len(content).to_bytes(_LENGTH_BYTES, "little") + content


def read_in_flight(path: Path) -> list[str]:
    """Return the items that workers took last, each once; [] where there is no such file. What cannot be read is left out."""
    try:
        content = read_regular(path, _MOST_BYTES)
    except OSError:
        return []
    found: dict[str, None] = {}
    for start in range(0, len(content), _SLOT_BYTES):
        length = int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            slot = content[start + _LENGTH_BYTES : start + _LENGTH_BYTES + min(length, _SLOT_BYTES)]
            found.update(dict.fromkeys(msgspec.msgpack.decode(slot, type=list[str])))
    return list(found)
