"""Which tensors of an ONNX file keep their values in other files, read from the file's own bytes.

How this works: an ONNX file is one Protocol Buffers message, a sequence of numbered fields of which some are messages again.
This walks the few that can lead to a tensor and skips all others by their length, on a memory map, so that weights are
not read. Neither the `onnx` package nor a generated parser is needed: the core install has neither, and what has to be known
before an engine opens a file must not depend on an extra.

A field that occurs twice is merged by parsers, so an entry counts wherever it stands, whether or not the same occurrence
also says that the tensor is external.

References:
    https://protobuf.dev/programming-guides/encoding, "Message Structure"
    https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (field numbers), docs/ExternalData.md
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import EngineError

#: {message: {field number: message in it}}, as far as they lead to tensors.
MESSAGES: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto", 22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}  # fmt: skip
_DIMS, _TYPE, _NAME, _EXTERNAL_DATA = 1, 2, 8, 13  # of TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which ONNX never had
#: A large language model has some millions; more is an attempt to keep the reader busy.
MOST_FIELDS = 10_000_000
#: As which a tensor with a reference counts: it takes as long to read and to check. A mixture of experts has some 50,000.
_FIELDS_OF_A_TENSOR = 20
_MOST_DIMS = 64
#: Without this word there is no reference to a file: it is the key of the path.
_KEY = b"location"


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """A tensor whose values are in another file."""

    name: str
    data_type: int
    """Of TensorProto.DataType; 0 where the file does not say."""
    dims: tuple[int, ...]
    entries: tuple[tuple[str, str], ...]
    """Key and value of each entry of `external_data`: `location`, `offset`, `length`, `checksum`."""

    def values(self, key: str) -> list[str]:
        """Return what is written under a key; a well-made file has one or none."""
        return [value for name, value in self.entries if name == key]


def external_tensors(artifact: Path) -> list[ExternalTensor]:
    """Return the tensors of an ONNX file that refer to other files; opens no other file.

    Raises:
        EngineError: If it is no ONNX file, or is cut off.
        OSError: If it cannot be read.
    """
    with artifact.open("rb") as file:
        if not file.seek(0, 2):
            raise EngineError(f"model file {artifact} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(data)
            except _Malformed as error:
                raise EngineError(
                    f"model file {artifact} cannot be opened: it is no ONNX file, or was cut off ({error})"
                ) from None


class _Malformed(Exception):
    """The bytes are not those of an ONNX model."""


def _read(data: mmap.mmap) -> list[ExternalTensor]:
    if data[4:8] == b"ORTM":
        raise _Malformed("it has ONNX Runtime's own format")
    if all(number != 7 for number, _, _, _ in _fields(data, 0, len(data))):  # a few, as the graph is one of them
        raise _Malformed("it holds no graph")
    if data.find(_KEY) < 0:
        return []
    found = []
    left = MOST_FIELDS
    waiting = [("ModelProto", 0, len(data))]
    while waiting:
        kind, start, end = waiting.pop()
        if kind == "TensorProto":
            tensor = _tensor(data, start, end)
            if tensor.entries:
                found.append(tensor)
                left -= _FIELDS_OF_A_TENSOR
            if left < 0:
                raise _Malformed(f"it has more than {MOST_FIELDS:,} parts")
            continue
        inside = MESSAGES[kind]
        for number, wire, begin, stop in _fields(data, start, end):
            left -= 1
            if number in inside and wire == _BYTES:
                waiting.append((inside[number], begin, stop))
        if left < 0:
            raise _Malformed(f"it has more than {MOST_FIELDS:,} parts")
    return found


def _tensor(data: mmap.mmap, start: int, end: int) -> ExternalTensor:
    name, data_type, dims, entries = "", 0, list[int](), list[tuple[str, str]]()
    for number, wire, begin, stop in _fields(data, start, end):
        if number == _NAME and wire == _BYTES:
            name = _text(data, begin, stop)
        elif number == _TYPE and wire == _VARINT:
            data_type, _ = _varint(data, begin, stop)
        elif number == _DIMS:
            while begin < stop and len(dims) <= _MOST_DIMS:  # packed into one field or one field each
                dim, begin = _varint(data, begin, stop)
                dims.append(dim)
        elif number == _EXTERNAL_DATA and wire == _BYTES:
            entries += _entry(data, begin, stop)
    return ExternalTensor(name, data_type, tuple(dims), tuple(entries))


def _entry(data: mmap.mmap, start: int, end: int) -> list[tuple[str, str]]:
    """Return every key with every value of a StringStringEntryProto: which of two counts is the parser's affair."""
    parts: dict[int, list[str]] = {1: [], 2: []}
    for number, wire, begin, stop in _fields(data, start, end):
        if number in parts and wire == _BYTES:
            parts[number].append(_text(data, begin, stop))
    return [(key, value) for key in parts[1] or [""] for value in parts[2] or [""]]


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, and where the value begins and ends, of each field of a message."""
    place = start
    while place < end:
        tag = data[place]
        if tag < 0x80:  # nearly always; a hundred thousand tensors have millions
            place += 1
        else:
            tag, place = _varint(data, place, end)
        wire = tag & 7
        begin = place
        if wire == _VARINT:
            _, place = _varint(data, place, end)
        elif wire == _BYTES:
            length, begin = (
                (data[place], place + 1) if place < end and data[place] < 0x80 else _varint(data, place, end)
            )
            place = begin + length
        elif wire in (_FIXED32, _FIXED64):
            place += 4 if wire == _FIXED32 else 8
        else:
            raise _Malformed(f"byte {begin:,} begins no field")
        if place > end:
            raise _Malformed(f"a field at byte {begin:,} would end {place - end:,} bytes after what holds it")
        yield tag >> 3, wire, begin, place


def _varint(data: Any, place: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise _Malformed(f"byte {place:,} does not end a number")


def _text(data: mmap.mmap, start: int, end: int) -> str:
    return data[start:end].decode("utf-8", "backslashreplace")
