"""What one batch cost where it was loaded, and the shared memory in which a loader's workers leave it.

How this works: nothing travels with the batch, so its type, its transport and its pinning stay as they are. Each worker has a
ring of slots in one piece of anonymous shared memory (`memfd_create`), and writes the record of its n-th batch into slot n
before it sends that batch. Batches of one worker arrive in the order in which it loaded them, also with `in_order=False`; so
the process that trains, which learns from the loader which worker a batch came from, reads slot n for the n-th batch of that
worker. A worker is never ahead by more batches than were asked for, so a slot is not written again before it is read; the mark
in it says which batch it is about. A forked worker inherits the memory, a spawned one opens it by its path in `/proc`. The
memory goes with the last process that has it open, however that ends.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any, NamedTuple

from headrace.base.own_files import close_own, identify


class Cost(NamedTuple):
    """Wall time, CPU time and run-queue delay of a thread, ns."""

    wall: int = 0
    cpu: int = 0
    delay: int = 0
    """-1: not measured."""

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(
            self.wall + other.wall,
            self.cpu + other.cpu,
            -1 if -1 in (self.delay, other.delay) else self.delay + other.delay,
        )

    def __sub__(self, other: Cost) -> Cost:
        delay = -1 if -1 in (self.delay, other.delay) else max(self.delay - other.delay, 0)
        return Cost(max(self.wall - other.wall, 0), max(self.cpu - other.cpu, 0), delay)

    @property
    def blocked(self) -> int:
        """Neither computing nor waiting for a core."""
        return max(self.wall - self.cpu - max(self.delay, 0), 0)


class BatchRecord(NamedTuple):
    """What one batch cost in the thread that loaded it; times in ns, on the clock of the host."""

    process: int
    number: int
    """Of the batch among those that this worker loaded since its iteration began, from 0."""
    num_items: int
    """0: not known."""
    failed: bool
    """An exception ended it."""
    begun: int
    collated: int
    """When the items were there and collating began; later by what was tokenised in that."""
    ended: int
    items: Cost
    """All items, with the parts that follow `collate`; and tokenising where `collate_fn` does that."""
    collate: Cost
    decode: Cost
    augment: Cost
    tokenise: Cost
    rest: Cost
    """Of the items: outside of the other parts. What it was blocked for is counted as reading."""
    opened: Cost
    """Of the items: before their transforms, outside of decoding and tokenising; nothing where no transform was seen. Blocked
    time in it is reading, too."""
    num_bytes: int
    """Of the tensors and arrays in the batch; 0: none were found."""
    slowest_item: int
    """Index of the item that took longest; -1: not known."""
    slowest: int
    """Wall time of it."""
    other_cpu: int
    """CPU time of the worker's other threads since its batch before: sending that one, and threads of decoders."""


#: Fields that are a `Cost`.
_COSTS = tuple(
    BatchRecord._fields.index(name) for name in ("items", "collate", "decode", "augment", "tokenise", "rest", "opened")
)
_LAYOUT = struct.Struct(f"<{1 + len(BatchRecord._fields) + 2 * len(_COSTS)}q")
#: The first bytes of the memory: not 0 once nobody reads any more.
_HEADER_BYTES = 64
#: Of each worker, behind them: where it was seen at work, as text with its length before it.
_LINES_BYTES, _LENGTH = 2048, struct.Struct("<I")


class SharedRecords:
    """The slots of all workers of one iterator; made by the process that trains.

    Args:
        num_workers: Worker processes.
        num_ahead: Batches that one worker may be ahead of the process that trains.

    Raises:
        OSError: If this process may have no more files, memory, or files of this size.
    """

    def __init__(self, num_workers: int, num_ahead: int) -> None:
        self._num_slots = num_ahead + 2  # one being loaded, one being read
        self._num_workers = num_workers
        self._size = _HEADER_BYTES + num_workers * (_LINES_BYTES + self._num_slots * _LAYOUT.size)
        self._file = os.memfd_create("headrace-loader")
        self._identity = identify(self._file)
        os.ftruncate(self._file, self._size)
        self._path = f"/proc/{os.getpid()}/fd/{self._file}"
        self._memory = mmap.mmap(self._file, self._size)

    def __getstate__(self) -> tuple[int, int, int, str]:
        return self._num_workers, self._num_slots, self._size, self._path

    def __setstate__(self, state: tuple[int, int, int, str]) -> None:
        self._num_workers, self._num_slots, self._size, self._path = state
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._identity = identify(self._file)
        self._memory = mmap.mmap(self._file, self._size)

    def __del__(self) -> None:
        file = getattr(self, "_file", -1)
        if file >= 0:
            close_own(file, self._identity)

    @property
    def is_over(self) -> bool:
        """Nobody reads any more."""
        return self._memory[0] != 0

    def end(self) -> None:
        """Let the workers write no more."""
        self._memory[0] = 1

    def write(self, worker: int, epoch: int, record: BatchRecord) -> None:
        """Leave the record of a worker's batch; only that worker calls this."""
        values: list[int] = [_mark(epoch, record.number)]
        for value in record:
            if isinstance(value, Cost):
                values += value
            else:
                values.append(value)
        _LAYOUT.pack_into(self._memory, self._place(worker, record.number), *values)

    def read(self, worker: int, epoch: int, number: int) -> BatchRecord | None:
        """Return the record of a batch that has come from a worker; None if it is not there."""
        values = _LAYOUT.unpack_from(self._memory, self._place(worker, number))
        if values[0] != _mark(epoch, number):
            return None
        rest = iter(values[1:])
        places = range(len(BatchRecord._fields))
        fields: list[Any] = [Cost(next(rest), next(rest), next(rest)) if at in _COSTS else next(rest) for at in places]
        return BatchRecord(*fields)

    def write_lines(self, worker: int, text: str) -> None:
        """Leave where a worker was seen at work, in place of what it left before; only that worker calls this."""
        content = text.encode(errors="replace")[: _LINES_BYTES - _LENGTH.size]
        place = _HEADER_BYTES + worker * _LINES_BYTES
        _LENGTH.pack_into(self._memory, place, 0)  # whoever reads now finds nothing, and not half of it
        self._memory[place + _LENGTH.size : place + _LENGTH.size + len(content)] = content
        _LENGTH.pack_into(self._memory, place, len(content))

    def read_lines(self) -> list[str]:
        """Return what each worker left."""
        found = []
        for worker in range(self._num_workers):
            place = _HEADER_BYTES + worker * _LINES_BYTES
            (length,) = _LENGTH.unpack_from(self._memory, place)
            begin = place + _LENGTH.size
            found.append(
                self._memory[begin : begin + min(length, _LINES_BYTES - _LENGTH.size)].decode(errors="replace")
            )
        return found

    def _place(self, worker: int, number: int) -> int:
        slots = _HEADER_BYTES + self._num_workers * _LINES_BYTES
        return slots + (worker * self._num_slots + number % self._num_slots) * _LAYOUT.size


def _mark(epoch: int, number: int) -> int:
    return (epoch + 1 << 40) + number + 1
