"""Event files for TensorBoard: the checksum's known value, and a file read back by the formats' own rules."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError
from headrace.report.tensorboard_file import crc32c, write_scalars


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a TFRecord file, whose checksums are checked."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        for start, size in ((at, 8), (at + 12, length)):
            (masked,) = struct.unpack_from("<I", data, start + size)
            turned = (masked - 0xA282EAD8) & 0xFFFFFFFF
            assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == crc32c(data[start : start + size])
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return number, at


def message(data: bytes) -> dict[int, list[bytes | int]]:
    """Return {field: values} of a protobuf message."""
    found: dict[int, list[bytes | int]] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value: bytes | int
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def test_the_checksum_has_its_known_value() -> None:
    """CRC-32C of the nine digits, as RFC 3720 and every implementation give it."""
    assert crc32c(b"123456789") == 0xE3069283


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    """Version first, then an event for each row, with step, time and values by name."""
    rows = [(100.5, 0, {"step/seconds": 0.25}), (101.0, 300, {"step/seconds": 0.5, "phase_seconds/wait": 0.125})]
    file = write_scalars(tmp_path / "logs" / "rank0", rows, started=99.0)
    assert file.name.startswith("events.out.tfevents.0000000099.")
    version, *events = (message(data) for data in records(file.read_bytes()))
    assert version[3] == [b"brain.Event:2"]
    assert [one.get(2, [0]) for one in events] == [[0], [300]]
    assert [struct.unpack("<d", one[1][0]) for one in events] == [(100.5,), (101.0,)]  # type: ignore[arg-type]
    values = [message(value) for value in message(events[1][5][0])[1]]  # type: ignore[arg-type]
    assert [(one[1][0], struct.unpack("<f", one[2][0])[0]) for one in values] == [  # type: ignore[arg-type]
        (b"step/seconds", 0.5),
        (b"phase_seconds/wait", 0.125),
    ]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "logs").write_text("x")
    with pytest.raises(RunFolderError, match="choose another folder"):
        write_scalars(tmp_path / "logs" / "rank0", [], started=1.0)
