"""The bytes of a NumPy file (`numpy.save`) -> the array in it, for pipelines of `ArrayInput`.

Its header is a stranger's: nothing is unpickled, and the array is made of the bytes that came, never of a size that is claimed.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from headrace.base.errors import BadMessage
from headrace.pipeline.definition import Pipeline
from headrace.stages.inputs import ArrayInput
from headrace.stages.module import ProcessStage

_HOW = "send a NumPy file (numpy.save), or tensors to /v2/models/NAME/infer"
#: Numbers and booleans; anything else is no tensor.
_KINDS = "biufc"


def read_npy(payload: Any, wanted: ArrayInput) -> Any:
    """Return the array, read-only, that a NumPy file holds; what is none is returned as it is if any value is wanted.

    Args:
        payload: Its bytes.
        wanted: Type and shape that it must have; without a type, the module takes any value.

    Raises:
        BadMessage: `message.array`: if it is none, or not such an array.
    """
    is_file = isinstance(payload, bytes) and payload.startswith(np.lib.format.MAGIC_PREFIX)
    if wanted.dtype is None and not is_file:
        return payload
    if not isinstance(payload, bytes):
        raise BadMessage(f"message.array: the pipeline takes arrays, and nothing is fetched for it; {_HOW}")
    file = io.BytesIO(payload)
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
    except Exception as error:  # of a header that is no header, NumPy lets through what its tokenizer raises
        raise BadMessage(f"message.array: the pipeline takes arrays: {_HOW}; {error!s:.200}") from None
    if dtype.kind not in _KINDS:
        raise BadMessage(f"message.array: the array has dtype {dtype!s:.40}; expected one of numbers")
    held, expected = len(payload) - file.tell(), math.prod(shape) * dtype.itemsize
    if held != expected:
        raise BadMessage(
            f"message.array: an array of shape {list(shape)!s:.100} and {dtype} has {expected:,} bytes, got {held:,}"
        )
    array = np.frombuffer(payload, dtype, offset=file.tell()).reshape(shape, order="F" if is_fortran else "C")
    _check(array, wanted)
    return array


def arrays_of(pipeline: Pipeline) -> dict[str, ArrayInput]:
    """Return {task: what it takes} of the modules that get what is in the job, and want an array."""
    found = {}
    for task, route in pipeline.routes.items():
        module = next((stage.module for stage in route if isinstance(stage, ProcessStage)), None)
        is_first = module is not None and len(route) == len(module.stages()) + 1  # its own stages, and the delivery
        if module is not None and is_first and isinstance(module.input, ArrayInput):
            found[task] = module.input
    return found


def _check(array: np.ndarray, wanted: ArrayInput) -> None:
    if wanted.dtype is not None and array.dtype != np.dtype(wanted.dtype):
        raise BadMessage(f"message.array: the array has dtype {array.dtype}; expected {wanted.dtype}")
    if wanted.shape is None:
        return
    fits = len(array.shape) == len(wanted.shape) and all(
        length in (None, given) for length, given in zip(wanted.shape, array.shape, strict=True)
    )
    if not fits:
        raise BadMessage(
            f"message.array: the array has shape {list(array.shape)!s:.100}; expected {list(wanted.shape)}, None for any length"
        )
