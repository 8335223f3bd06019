"""Tensors <-> JSON: lists of numbers, nested as the shape is, or flat."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.serve.oip.datatypes import BYTES, MAX_RANK, NUMPY_TYPES, count_elements
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.messages import Tensor

_ELEMENTS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float}
_SPACE = b" \t\r\n"


def read_json_tensor(raw: bytes, name: str, datatype: str, shape: Sequence[int]) -> Tensor:
    """Return a tensor that came as JSON.

    Raises:
        OipError: If it is not one of this type and shape.
    """
    number = count_elements(shape, name)
    kind = str if datatype == BYTES else _ELEMENTS[NUMPY_TYPES[datatype].kind]
    # Numbers are parted by as many commas however they are nested: so it is known beforehand what the list will take up.
    if kind is not str and number != (found := _count_numbers(raw)):
        raise OipError("oip.size", f"{name} has {found:,} numbers; shape {list(shape)} has {number:,}")
    depth = _depth(raw)
    if depth not in (1, len(shape)):
        raise OipError("oip.shape", f"{name} has lists {depth} deep; expected 1 or {len(shape)}, the axes of its shape")
    try:
        values = _decoder(kind, depth).decode(raw)
        if kind is str:
            return Tensor(name, datatype, tuple(shape), _read_texts(values, depth, shape, name))
        with np.errstate(over="raise"):
            array = np.array(values, NUMPY_TYPES[datatype])
    except msgspec.MsgspecError as error:
        raise OipError("oip.value", f"{name} cannot be read as {datatype}: {error}") from None
    except (ValueError, OverflowError, FloatingPointError) as error:  # lists of unequal length, numbers out of range
        raise OipError("oip.value", f"{name} cannot be read as {datatype} of shape {list(shape)}: {error}") from None
    if depth > 1 and array.shape != tuple(shape):
        raise OipError("oip.shape", f"{name} has lists of shape {list(array.shape)}; its shape is {list(shape)}")
    return Tensor(name, datatype, tuple(shape), array.reshape(shape))


def write_json_data(tensor: Tensor) -> list[Any]:
    """Return a tensor's elements one after the other, as JSON holds them.

    Raises:
        OipError: If JSON cannot hold one.
    """
    data = tensor.data
    if isinstance(data, list):
        try:
            return [element.decode() for element in data]
        except UnicodeDecodeError:
            raise OipError(
                "oip.not_text", f"output {tensor.name} holds bytes that are not text; ask for it as binary data", 406
            ) from None
    if data.dtype.kind == "f" and not np.isfinite(data).all():
        raise OipError(
            "oip.not_finite",
            f"output {tensor.name} holds NaN or infinity; ask for it as binary data, which has both",
            406,
        )
    return data.ravel().tolist()


def _count_numbers(raw: bytes) -> int:
    commas = raw.count(b",")
    return commas + 1 if commas or raw.strip(_SPACE + b"[]") else 0


def _depth(raw: bytes) -> int:
    """Return how many lists begin before the first element."""
    depth = 0
    for byte in raw:
        if byte == ord("["):
            depth += 1
        elif byte not in _SPACE:
            break
        if depth > MAX_RANK:
            break  # whatever follows, it is none of ours
    return depth


@functools.cache
def _decoder(kind: type, depth: int) -> msgspec.json.Decoder[Any]:
    wanted: Any = kind
    for _ in range(depth):
        wanted = list[wanted]
    return msgspec.json.Decoder(wanted)


def _read_texts(values: Any, depth: int, shape: Sequence[int], name: str) -> list[bytes]:
    lengths = shape if depth == len(shape) else (count_elements(shape, name),)
    level = [values]
    for length in lengths:
        if any(len(one) != length for one in level):
            raise OipError("oip.shape", f"{name} has lists that are not of its shape {list(shape)}")
        level = [each for one in level for each in one]
    return [text.encode() for text in level]
