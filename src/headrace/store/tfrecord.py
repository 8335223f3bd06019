"""TFRecord files, read and written without TensorFlow.

References:
    TFRecord: tensorflow.org/tutorials/load_data/tfrecord: length (8 bytes, little-endian), masked CRC-32C of the length,
    data, masked CRC-32C of the data. The data are a tf.train.Example: tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from headrace.store.crc32c import masked_crc32c
from headrace.store.expansion import MOST_BYTES


class NoRecord(ValueError):
    """There is no record where one should be; the message says why."""


def read_records(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes | None]:
    """Yield the records of a file; None for one whose data have another checksum than is written.

    Raises:
        NoRecord: If nothing can be read from here on.
    """
    at = 0
    while head := file.read(12):
        if len(head) < 12:
            raise NoRecord(f"the record at byte {at:,} is cut off")
        length, checksum = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != checksum or length > MOST_BYTES:
            raise NoRecord(f"there is no record at byte {at:,}: the checksum of its length is wrong")
        data = file.read(length + 4)
        if len(data) < length + 4:
            raise NoRecord(f"the record at byte {at:,} is cut off: {len(data):,} of {length + 4:,} bytes are there")
        record = data[:length]
        yield record if masked_crc32c(record) == int.from_bytes(data[length:], "little") else None
        at += length + 16


def make_record(row: Mapping[str, bytes]) -> bytes:
    """Return a record: a tf.train.Example of bytes, framed."""
    entries = (_field(1, _field(1, name.encode()) + _field(2, _field(1, _field(1, one)))) for name, one in row.items())
    data = _field(1, b"".join(entries))
    length = struct.pack("<Q", len(data))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))])


def _field(number: int, data: bytes) -> bytes:
    length, head = len(data), bytes([number << 3 | 2])
    while length > 0x7F:
        head, length = head + bytes([length & 0x7F | 0x80]), length >> 7
    return head + bytes([length]) + data


def read_example(data: bytes) -> dict[str, Any]:
    """Return {name: value} of a tf.train.Example; a feature of one value is that value."""
    row = {}
    for number, features in _fields(data):
        if number != 1:
            continue
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            values = [value for kind, one in _fields(parts.get(2, b"")) for value in _read_values(kind, one)]
            row[_bytes(parts.get(1, b"")).decode()] = values[0] if len(values) == 1 else _as_array(values)
    return row


def _as_array(values: list[Any]) -> Any:
    """Return numbers as an array of the type that they have in the file; bytes as they are."""
    kinds = {float: np.float32, int: np.int64}
    return np.array(values, kinds[type(values[0])]) if values and type(values[0]) in kinds else values


def _read_values(kind: int, data: bytes) -> list[Any]:
    """Return the values of a bytes_list (1), a float_list (2) or an int64_list (3), packed or not."""
    found: list[Any] = []
    for _, value in _fields(data):
        if kind == 1:
            found.append(_bytes(value))
        elif kind == 2:
            found += np.frombuffer(_bytes(value), "<f4").tolist()
        elif isinstance(value, int):
            found.append(_signed(value))
        else:
            found += map(_signed, _varints(value))
    return found


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Return (number, value) of a message's fields: bytes, or an int where it is one."""
    view, at = memoryview(_bytes(data)), 0
    while at < len(view):
        key, at = _varint(view, at)
        kind, value = key & 7, b""  # type: tuple[int, int | bytes]
        if kind == 0:
            value, at = _varint(view, at)
        elif kind in (1, 2, 5):
            length, at = _varint(view, at) if kind == 2 else (8 if kind == 1 else 4, at)
            if at + length > len(view):
                raise ValueError("a record is no tf.train.Example")
            value, at = bytes(view[at : at + length]), at + length
        else:
            raise ValueError("a record is no tf.train.Example")
        yield key >> 3, value


def _bytes(value: Any) -> bytes:
    """Return a value of a message; raises ValueError if it is a number, as in messages of other kinds."""
    if isinstance(value, int):
        raise ValueError("a record is no tf.train.Example")
    return bytes(value)


def _varints(data: bytes) -> Iterator[int]:
    view, at = memoryview(data), 0
    while at < len(view):
        value, at = _varint(view, at)
        yield value


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a record is no tf.train.Example")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
