"""The rows of files that hold many items: Parquet and Arrow by pyarrow, TFRecord by what stands here, without TensorFlow.

Each reader is a generator of rows as {column: value}, in the order of the file. Whatever is damaged ends it with `DamagedFile`.

References:
    TFRecord: tensorflow.org/tutorials/load_data/tfrecord: length (8 bytes, little-endian), masked CRC-32C of the length,
    data, masked CRC-32C of the data. The data are a tf.train.Example: tensorflow/core/example/{example,feature}.proto. The
    checksum of a length is compared; that of the data is not, as Python has no fast CRC-32C.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Rows = Generator[Mapping[str, Any], None, None]

#: Rows of a table that are in memory at once.
_ROWS_AT_ONCE = 64
#: The largest record that is believed.
_MOST_BYTES = 2**29
_MASK_DELTA = 0xA282EAD8


class DamagedFile(Exception):
    """A file cannot be read, or not to its end; the message says why."""


def read_parquet(path: Path, columns: Callable[[Any], list[str]]) -> Rows:
    """Return the rows of a Parquet file, of the columns that are chosen from its schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            wanted = columns(file.schema_arrow)
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(str(error)) from None


def read_arrow(path: Path, columns: Callable[[Any], list[str]]) -> Rows:
    """Return the rows of an Arrow file or stream, such as Feather and the data sets of Hugging Face."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as source:  # not mapped: a file that is cut off meanwhile would end the process
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source) as reader:
                wanted = columns(reader.schema)
                batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
                for batch in batches:
                    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                        yield from batch.select(wanted).slice(start, _ROWS_AT_ONCE).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(str(error)) from None


def read_tfrecord(path: Path, columns: Callable[[Any], list[str]]) -> Rows:
    """Return the features of the examples in a TFRecord file, which may be compressed with gzip."""
    try:
        with path.open("rb") as file:
            is_zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield from map(_read_example, _read_records(gzip.GzipFile(fileobj=file) if is_zipped else file))
    except (OSError, EOFError, struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise DamagedFile(str(error) or type(error).__name__) from None


def _read_records(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    at = 0
    while head := file.read(12):
        length, checksum = struct.unpack("<QI", head)
        if _masked_crc32c(head[:8]) != checksum or length > _MOST_BYTES:
            raise DamagedFile(f"there is no record at byte {at:,}: the checksum of its length is wrong")
        data = file.read(length + 4)
        if len(data) < length + 4:
            raise DamagedFile(f"the record at byte {at:,} is cut off: {len(data):,} of {length + 4:,} bytes are there")
        yield data[:length]
        at += length + 16


def _read_example(data: bytes) -> dict[str, Any]:
    """Return {name: value} of a tf.train.Example; a feature of one value is that value."""
    row = {}
    for number, features in _fields(data):
        if number != 1:
            continue
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            values = [value for kind, one in _fields(parts.get(2, b"")) for value in _read_values(kind, one)]
            row[parts.get(1, b"").decode()] = values[0] if len(values) == 1 else values
    return row


def _read_values(kind: int, data: bytes) -> list[Any]:
    """Return the values of a bytes_list (1), a float_list (2) or an int64_list (3), packed or not."""
    found: list[Any] = []
    for _, value in _fields(data):
        if kind == 1:
            found.append(value)
        elif kind == 2:
            found += np.frombuffer(value, "<f4").tolist()
        elif isinstance(value, int):
            found.append(_signed(value))
        else:
            found += map(_signed, _varints(value))
    return found


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Return (number, value) of a message's fields: bytes, or an int where it is one."""
    view, at = memoryview(data), 0
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


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _make_table()


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF


#: {suffix of a file: what reads its rows, given the file and what chooses columns from a schema of Arrow}.
FORMATS: Mapping[str, Callable[[Path, Callable[[Any], list[str]]], Rows]] = {
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".feather": read_arrow,
    ".tfrecord": read_tfrecord,
    ".tfrecords": read_tfrecord,
}
