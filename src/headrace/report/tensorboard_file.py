"""Writes scalars as TensorBoard reads them: an event file, without TensorFlow or TensorBoard.

How this works: the file is a row of records, each with its length and two checksums; a record is an `Event` message with the
time, the step and values by name. Both formats are a few fields wide and written by hand here: TensorBoard's own writer would
bring twelve packages.

References:
    TFRecord: https://www.tensorflow.org/tutorials/load_data/tfrecord (length, masked CRC-32C);
    tensorboard/compat/proto/event.proto, summary.proto: Event.wall_time = 1, step = 2, file_version = 3, summary = 5;
    Summary.value = 1; Value.tag = 1, simple_value = 2.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.base.errors import RunFolderError
from headrace.base.formatting import encodable

#: Time in seconds since the epoch, step, {name: value}.
Row = tuple[float, int, Mapping[str, float]]


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def write_scalars(folder: Path, rows: Iterable[Row], *, started: float) -> Path:
    """Write an event file into a folder, which is made; return the file.

    Args:
        folder: TensorBoard takes each folder for a run.
        rows: In the order of their steps.
        started: When the run began, seconds since the epoch; part of the file's name.

    Raises:
        RunFolderError: If it cannot be written.
    """
    path = folder / f"events.out.tfevents.{int(started):010d}.{encodable(socket.gethostname())}.headrace"
    temporary = folder / f".{path.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(_record(_event(started, text=b"brain.Event:2")))
            for time, step, values in rows:
                file.write(_record(_event(time, step=step, values=values)))
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}; choose another folder") from error
    return path


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    """Return the checksum of a record: CRC-32C, turned and shifted so that it differs from the data's own."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _event(time: float, *, step: int = 0, text: bytes = b"", values: Mapping[str, float] | None = None) -> bytes:
    found = b"\x09" + struct.pack("<d", time)
    if step:
        found += b"\x10" + _varint(step)
    if text:
        found += b"\x1a" + _varint(len(text)) + text
    if values:
        summary = b"".join(map(_value, values, values.values()))
        found += b"\x2a" + _varint(len(summary)) + summary
    return found


def _value(name: str, value: float) -> bytes:
    tag = encodable(name).encode()
    inner = b"\x0a" + _varint(len(tag)) + tag + b"\x15" + struct.pack("<f", value)
    return b"\x0a" + _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
