"""What of an epoch a loader handed out, also where batches do not come in order: a place, and which batches behind it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from headrace.base.errors import SettingsError
from headrace.base.settings import check
from headrace.store.order import Course, Position

#: Batches behind the first one that is missing, at most; as bits they and a position come to 60 bytes.
MOST_BEYOND = 256
#: Mark of how the batches are cut, and the bits.
_BEYOND = struct.Struct("<I32s")


@dataclass(slots=True)
class HandedOut:
    """Counts the batches of one rank from `position` on: the first behind it is number 0 when a loop begins."""

    position: Position
    """Behind what was handed out without a gap."""
    beyond: int = 0
    """Bit k: the k-th batch behind `position` was handed out already. Bit 0 is never set."""
    is_apart: bool = False
    """Whether other ranks may have handed out other batches than this one, so that each needs its own state."""
    _front: int = 0

    def begin(self, epoch: int) -> None:
        """Number the batches from 0: a loop over an epoch begins."""
        self._front = 0
        if epoch != self.position.epoch:  # the one before is over
            self.position, self.beyond = Position(self.position.seed, epoch, 0), 0

    def has(self, number: int) -> bool:
        """Return whether a batch was handed out."""
        return number < self._front or bool(self.beyond >> (number - self._front) & 1)

    def has_room(self, number: int) -> bool:
        """Return whether a batch may be handed out before all in front of it were."""
        return number - self._front < MOST_BEYOND

    def take(self, number: int, course: Course) -> None:
        """Note that a batch is handed out."""
        self.beyond |= 1 << (number - self._front)
        while self.beyond & 1:
            self.position, self.beyond, self._front = course.behind(self.position), self.beyond >> 1, self._front + 1

    def encode(self, course: Course) -> bytes:
        """Return 24 bytes; 60 where batches behind a gap, or other ones of other ranks, were handed out."""
        place = self.position.encode(course.order)
        is_within = self.position.place > 0 and not course.is_over(self.position.place)
        if not self.beyond and not (self.is_apart and course.ranks > 1 and is_within):
            return place
        return place + _BEYOND.pack(_mark(course), self.beyond.to_bytes(32, "little"))

    @classmethod
    def decode(cls, state: bytes, course: Course) -> HandedOut:
        """Read what `encode` returned.

        Raises:
            SettingsError: If it is of another order, or has a gap and is of other batches, so that the gap would be elsewhere.
        """
        size = len(state) - _BEYOND.size if isinstance(state, bytes) else 0
        if size != Position.NUM_BYTES:
            return cls(Position.decode(state, course.order))
        position = Position.decode(state[:size], course.order)
        mark, bits = _BEYOND.unpack(state[size:])
        if mark != _mark(course):
            raise SettingsError(
                "the state was taken while batches came out of order, so it is of one rank, with its size of batches, number "
                "of ranks and `end`: resume with the same, or take the state at the end of an epoch"
            )
        beyond = int.from_bytes(bits, "little")
        check(not beyond & 1, "state", "60 bytes of which some are others", "the 60 bytes that `state` returned")
        return cls(position, beyond, is_apart=True)


def _mark(course: Course) -> int:
    return zlib.crc32(repr(course.cut).encode())
