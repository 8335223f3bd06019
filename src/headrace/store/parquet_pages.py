"""The sizes of the pages of a Parquet file, as their own headers say them.

The footer has such sizes, too, but nothing compares them: a page is unpacked into as much memory as its header says.

References:
    Page headers: github.com/apache/parquet-format, parquet.thrift, PageHeader; in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.store.expansion import check_expansion

#: Bytes of a header that are looked at first, and at most.
_WINDOW, _MOST_HEADER = 2**12, 2**24
#: Encodings in which a value may be the one before but for its end.
_SHARING = 7
_DICTIONARY = 2
_DEEPEST = 16


class NoPage(ValueError):
    """There is no header of a page where one should be."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The values of a column in a group of rows."""

    path: str
    num_bytes: int
    """Of all pages, unpacked."""
    most_bytes: int
    """What its values come to at most, one by one, as many may be one that is written once."""
    is_repeated: bool
    """Whether one row may have many of its values."""
    stored: int
    """Bytes in the file."""


def measure_group(
    read_at: Callable[[int, int], bytes], metadata: Any, group: int, columns: Sequence[str]
) -> list[Chunk]:
    """Return what some columns of a group of rows come to.

    Args:
        read_at: Returns as many bytes from a place in the file.
        metadata: The file's, by pyarrow.
        group: Its number.
        columns: Names of columns of the table.

    Raises:
        NoPage: If the headers cannot be read.
        TooLarge: If a page is a bomb.
    """
    row_group, schema = metadata.row_group(group), metadata.schema
    return [
        _measure(read_at, row_group.column(number), schema.column(number).max_repetition_level > 0)
        for number in range(row_group.num_columns)
        if row_group.column(number).path_in_schema.split(".")[0] in columns
    ]


def _measure(read_at: Callable[[int, int], bytes], column: Any, is_repeated: bool) -> Chunk:
    at = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    at = min(at or column.data_page_offset, column.data_page_offset)
    end, left = at + column.total_compressed_size, column.num_values
    stored, total, shared, number = column.total_compressed_size, 0, 0, 0
    while at < end and left > 0:
        fields, length = _read_header(read_at, at)
        unpacked, packed = _number(fields, 2), _number(fields, 3)
        check_expansion(unpacked, packed, f"a page of the column {column.path_in_schema}")
        about: dict[int, Any] = next((fields[one] for one in (5, 8) if isinstance(fields.get(one), dict)), {})
        encoding = about.get(2 if 5 in fields else 4)
        if fields.get(1) == _DICTIONARY or encoding == _SHARING:
            shared = max(shared, unpacked)
        values = about.get(1, 0)
        left, number = left - max(values, 0), number + max(values, 0)
        total += unpacked
        at += length + packed
    most = total + min(number, column.num_values) * (shared + 8)
    return Chunk(column.path_in_schema, total, most, is_repeated, stored)


def _number(fields: dict[int, Any], field: int) -> int:
    found = fields.get(field)
    if not isinstance(found, int) or found < 0:
        raise NoPage("a page has no size")
    return found


def _read_header(read_at: Callable[[int, int], bytes], at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a header, by their numbers, and its length."""
    size = _WINDOW
    while True:
        data = read_at(at, size)
        try:
            return _read_struct(data, 0, 0)
        except IndexError:
            if len(data) < size or size >= _MOST_HEADER:
                raise NoPage(f"there is no header of a page at byte {at:,}") from None
            size *= 16


def _read_struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEEPEST:
        raise NoPage("a header of a page is nested too deeply")
    fields: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _read_signed(data, at)
        fields[field], at = _read_value(data, at, head & 15, depth)
    return fields, at + 1


def _read_value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _read_signed(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _read_varint(data, at)
        return None, _within(data, at + length)
    if kind == 12:
        return _read_struct(data, at, depth + 1)
    raise NoPage(f"a header of a page has a field of the kind {kind}")


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError(at)
    return at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise NoPage("a header of a page has a number that does not end")


def _read_signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return value >> 1 ^ -(value & 1), at
