"""The types of tensors, and tensors <-> bytes in the protocol's order: row after row, little-endian, nothing between.

Nothing is allocated for a shape before the bytes that came were found to fill it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from headrace.serve.oip.failure import OipError

BYTES: Final = "BYTES"
_BF16: Final = "BF16"
#: Axes that a tensor may have.
MAX_RANK = 32
_NUM_LENGTH_BYTES = 4
_MAX_LENGTH = 2**63 - 1
_MOST_BESIDE_EMPTY = 2**56

#: NumPy's type of each.
NUMPY_TYPES: Final = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    _BF16: np.dtype("<f4"),  # NumPy has no such type; the wider one holds every value
}
_NAMES: Final = {kind: name for name, kind in NUMPY_TYPES.items() if name != _BF16}


def name_of(kind: np.dtype) -> str | None:
    """Return the protocol's name of a NumPy type; None if it has none."""
    return _NAMES.get(kind.newbyteorder("<"))


def check_datatype(datatype: str, tensor: str) -> None:
    """Raise OipError unless this is a type of the protocol."""
    if datatype != BYTES and datatype not in NUMPY_TYPES:
        raise OipError(
            "oip.datatype", f"{tensor} has datatype {datatype!r:.40}; expected {BYTES}, {', '.join(NUMPY_TYPES)}"
        )


def count_elements(shape: Sequence[int], tensor: str) -> int:
    """Return how many elements a shape has.

    Raises:
        OipError: If an axis is negative, or there are too many.
    """
    if len(shape) > MAX_RANK:
        raise OipError("oip.shape", f"{tensor} has {len(shape)} axes; expected at most {MAX_RANK}")
    for axis, length in enumerate(shape):
        if not 0 <= length <= _MAX_LENGTH:
            raise OipError(
                "oip.shape", f"axis {axis} of {tensor} is {str(length)[:20]} long; expected 0 to {_MAX_LENGTH}"
            )
    # NumPy counts the other axes' bytes even where one axis is empty, and takes none that it could not count.
    if 0 in shape and math.prod(length for length in shape if length) > _MOST_BESIDE_EMPTY:
        raise OipError(
            "oip.shape", f"{tensor} is empty and has shape {list(shape)}; expected shorter axes beside the 0"
        )
    return math.prod(shape)


def read_array(raw: bytes | memoryview, datatype: str, shape: Sequence[int], tensor: str) -> np.ndarray:
    """Return a tensor of numbers as an array of its own that may be written to.

    Raises:
        OipError: If there are more or fewer bytes than the shape has room for, or a BOOL is neither 0 nor 1.
    """
    kind = NUMPY_TYPES[datatype]
    size = 2 if datatype == _BF16 else kind.itemsize
    expected = count_elements(shape, tensor) * size
    if len(raw) != expected:
        raise OipError(
            "oip.size", f"{tensor} came with {len(raw):,} bytes; {datatype} of shape {list(shape)} has {expected:,}"
        )
    copied = bytearray(raw)
    if datatype == _BF16:
        widened = np.frombuffer(copied, "<u2").astype("<u4") << 16
        return widened.view(kind).reshape(shape)
    if datatype == "BOOL" and (np.frombuffer(copied, np.uint8) > 1).any():
        raise OipError("oip.value", f"{tensor} holds bytes above 1; a BOOL is 0 or 1")
    return np.frombuffer(copied, kind).reshape(shape)


def split_bytes(raw: bytes | memoryview, shape: Sequence[int], tensor: str) -> list[bytes]:
    """Return the elements of a BYTES tensor, each of which comes behind its length.

    Raises:
        OipError: If they do not fill the bytes and the shape exactly.
    """
    number = count_elements(shape, tensor)
    view = memoryview(raw)
    if number * _NUM_LENGTH_BYTES > len(view):
        raise OipError("oip.size", f"{tensor} came with {len(view):,} bytes; {number:,} lengths alone have more")
    elements, at = [], 0
    for index in range(number):
        begin = at + _NUM_LENGTH_BYTES
        at = begin + int.from_bytes(view[at:begin], "little")
        if begin > len(view) or at > len(view):
            raise OipError("oip.size", f"{tensor} ends within element {index} of {number:,}")
        elements.append(bytes(view[begin:at]))
    if at != len(view):
        raise OipError("oip.size", f"{tensor} has {len(view) - at:,} bytes behind its last element, of {number:,}")
    return elements


def join_bytes(elements: Sequence[bytes]) -> bytes:
    """Return a BYTES tensor as bytes, each element behind its length."""
    parts: list[bytes] = []
    for element in elements:
        parts += (len(element).to_bytes(_NUM_LENGTH_BYTES, "little"), element)
    return b"".join(parts)


def write_array(array: np.ndarray) -> bytes:
    """Return a tensor of numbers as bytes."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
