"""What an ONNX file says of itself (`metadata_props`), read without a library: engines that drop it must not lose it.

References:
    onnx.proto, message ModelProto: `repeated StringStringEntryProto metadata_props = 14`, key 1, value 2; Protocol Buffers,
    "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_METADATA, _KEY, _VALUE = 14, 1, 2
#: Wire types: a number, eight bytes, a length with as many bytes, four bytes.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_metadata(artifact: Path) -> dict[str, str]:
    """Return {key: value} of a file; empty where it is no ONNX file or says nothing."""
    if artifact.suffix != ".onnx":
        return {}
    try:
        entries = [
            dict(_fields(entry)) for field, entry in _fields(memoryview(artifact.read_bytes())) if field == _METADATA
        ]
        return {bytes(one[_KEY]).decode(): bytes(one.get(_VALUE, b"")).decode() for one in entries if _KEY in one}
    except (OSError, ValueError, IndexError):  # whoever opens it says what is wrong with it
        return {}


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Give the number and content of each field that holds bytes; the others are stepped over."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"no such wire type: {kind}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number that does not end")
