"""What the batches of an Arrow file or stream come to when they are unpacked, as the lengths before their buffers say it.

References:
    Messages, compressed buffers: arrow.apache.org/docs/format/Columnar.html, format/{Message,File}.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from headrace.store.expansion import check_expansion

_CONTINUED = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3
_MOST_HEADER = 2**26


class NoMessage(ValueError):
    """There is no message where one should be."""


class _Flat:
    """A table of a FlatBuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self._slots = at - _int(data, "<i", at)
        self._size = _int(data, "<H", self._slots)

    @classmethod
    def root(cls, data: bytes) -> _Flat:
        return cls(data, _int(data, "<I", 0))

    def place(self, field: int) -> int | None:
        """Return where a field is; None if it is left out."""
        slot = 4 + 2 * field
        offset = _int(self.data, "<H", self._slots + slot) if slot + 2 <= self._size else 0
        return self.at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else _int(self.data, form, place)

    def table(self, field: int) -> _Flat | None:
        place = self.place(field)
        return None if place is None else _Flat(self.data, place + _int(self.data, "<I", place))

    def structs(self, field: int, form: str) -> Iterator[tuple[int, ...]]:
        place = self.place(field)
        if place is None:
            return
        start = place + _int(self.data, "<I", place)
        number, start, size = _int(self.data, "<I", start), start + 4, struct.calcsize(form)
        if start + number * size > len(self.data):
            raise NoMessage("a list in a message is longer than the message")
        yield from (struct.unpack_from(form, self.data, start + index * size) for index in range(number))


def _int(data: bytes, form: str, at: int) -> int:
    if at < 0:
        raise NoMessage("a message names a place before itself")
    try:
        return int(struct.unpack_from(form, data, at)[0])
    except struct.error:
        raise NoMessage("a message is cut off") from None


def check_file(source: Any) -> Iterator[None]:
    """Check the batches of a file one after the other, before each is read; dictionaries with the first.

    Args:
        source: The file, as `pyarrow.OSFile` has it.

    Raises:
        NoMessage: If a message cannot be read.
        TooLarge: If a batch is a bomb.
    """
    size = source.size()
    length = _int(source.read_at(4, max(0, size - 10)), "<i", 0)
    if not 0 < length < size:
        raise NoMessage("the file has no footer")
    footer = _Flat.root(source.read_at(length, size - 10 - length))
    for at, *_ in footer.structs(2, "<qi4xq"):
        _check(source, at, size)
    for at, *_ in footer.structs(3, "<qi4xq"):
        _check(source, at, size)
        yield


def check_stream(source: Any) -> Iterator[None]:
    """Check the batches of a stream one after the other, before each is read; see `check_file`."""
    at, size = 0, source.size()
    while at < size:
        kind, at = _check(source, at, size)
        if kind < 0:
            return
        if kind == _BATCH:
            yield


def _check(source: Any, at: int, size: int) -> tuple[int, int]:
    """Check the message at a place; return its kind, -1 at the end, and where the next one is."""
    head = source.read_at(8, at)
    start = 4
    length = _int(head, "<I", 0)
    if length == _CONTINUED:
        length, start = _int(head, "<I", 4), 8
    if not length:
        return -1, at
    if length > min(size, _MOST_HEADER):
        raise NoMessage(f"there is no message at byte {at:,}")
    message = _Flat.root(source.read_at(length, at + start))
    kind, body, end = message.number(1, "<B"), at + start + length, message.number(3, "<q")
    if end < 0:
        raise NoMessage(f"the message at byte {at:,} has a length below 0")
    about = message.table(2)
    if kind == _DICTIONARY and about is not None:
        about = about.table(1)
    if kind in (_DICTIONARY, _BATCH) and about is not None and about.place(3) is not None:
        unpacked = 0
        for place, stored in about.structs(2, "<qq"):
            if stored >= 8 and place >= 0:
                unpacked += max(stored, _int(source.read_at(8, body + place), "<q", 0))
        check_expansion(unpacked, end, f"the batch at byte {at:,}")
    return kind, body + end
