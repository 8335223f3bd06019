"""Buffers for bodies: reused, and counted."""

from __future__ import annotations

import mmap
import sys

from headrace.serve.http.refusal import BadRequest

_SMALLEST = 4096
#: References to a buffer in `take`: the variable, and the argument of `getrefcount`. More: somebody still has a view of it.
_OWN_REFERENCES = 2


class Bodies:
    """Keeps buffers for the next request, and counts the bytes of all bodies.

    Not safe for threads: one front uses it in its own.

    Attributes:
        used_bytes: Of bodies that are being received or answered.
    """

    def __init__(self, total_bytes: int, kept_bytes: int) -> None:
        self.used_bytes = 0
        self._total_bytes = total_bytes
        self._room_bytes = kept_bytes
        self._free: dict[int, list[mmap.mmap]] = {}

    def check(self, num_bytes: int) -> None:
        """Raise `BadRequest` if there is no room for so many bytes more."""
        if self.used_bytes + num_bytes > self._total_bytes:
            raise BadRequest(
                503,
                "http.total_bytes",
                f"the requests in flight hold {self.used_bytes:,} bytes of {self._total_bytes:,}; no room for"
                f" {num_bytes:,} more; try again later",
                ("Retry-After", "1"),
            )

    def count(self, num_bytes: int) -> None:
        """Count bytes that have come; raises `BadRequest` if they are too many."""
        self.check(num_bytes)
        self.used_bytes += num_bytes

    def take(self, num_bytes: int) -> mmap.mmap:
        """Return a buffer of at least so many bytes, > 0; raises `BadRequest` if there is no memory.

        It is anonymous memory: its pages take room once bytes have come, so a length that is only announced costs nothing.
        """
        size = max(_SMALLEST, 1 << (num_bytes - 1).bit_length())
        free = self._free.get(size)
        while free:
            buffer = free.pop()
            self._room_bytes += size
            # One that is still looked at is left to its view: nobody sees another's body.
            if sys.getrefcount(buffer) == _OWN_REFERENCES:
                return buffer
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            reason = f"no memory for a body of {num_bytes:,} bytes: {error}; try again later"
            raise BadRequest(503, "http.memory", reason, ("Retry-After", "1")) from error

    def give(self, buffer: mmap.mmap) -> None:
        """Take a buffer back, of which somebody may still have a view: see `take`."""
        if self._room_bytes >= len(buffer):
            self._room_bytes -= len(buffer)
            self._free.setdefault(len(buffer), []).append(buffer)
