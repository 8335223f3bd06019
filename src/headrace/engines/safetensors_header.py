"""Whether the header of a safetensors file fits the file; its values are not read, and nothing in it is run.

References:
    https://github.com/huggingface/safetensors, "Format": eight bytes of length, JSON, then the tensors without holes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

_LONGEST = 100 * 10**6  # bytes of a header, as the format's own readers have it
#: Bits of one element; of types that came later only the place is checked.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """What the header says of one tensor."""

    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Count, _Count]


# Built before threads start: msgspec crashes where two workers that open a model compile its types at once.
_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensor_decoder = msgspec.json.Decoder(_Tensor)


def safetensors_fault(artifact: Path) -> str | None:
    """Return what is wrong with a file; None if its header fits it.

    Raises:
        OSError: If it cannot be read.
    """
    size = artifact.stat().st_size
    with artifact.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LONGEST):
            return (
                f"its header would have {length:,} bytes of {size:,}; expected at most {_LONGEST:,}: it was cut off, "
                "or is no safetensors file"
            )
        header = file.read(length)
    try:
        parts = _header_decoder.decode(header)
        parts.pop("__metadata__", None)
        tensors = {name: _tensor_decoder.decode(part) for name, part in parts.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"its header cannot be read: {error}"
    return _fault_of(tensors, size - 8 - length)


def _fault_of(tensors: dict[str, _Tensor], num_bytes: int) -> str | None:
    """Return what keeps the tensors from filling so many bytes, one after another."""
    place = 0
    for name, tensor in sorted(tensors.items(), key=lambda part: part[1].data_offsets):
        begin, end = tensor.data_offsets
        bits = _BITS.get(tensor.dtype)
        needed = end - begin if bits is None else math.prod(tensor.shape) * bits // 8
        if begin != place or end != begin + needed or end < begin:
            return (
                f"tensor {name[:80]!r} of {tensor.dtype[:20]} {tensor.shape[:8]} is said to be at {begin:,} to {end:,}; "
                f"expected {needed:,} bytes from {place:,}: tensors overlap, leave holes or are not of their shape"
            )
        place = end
    return (
        None
        if place == num_bytes
        else f"its tensors end at {place:,} of {num_bytes:,} bytes: it was cut off or added to"
    )
