"""The body of an HTTP request -> a request: JSON, and behind it the bytes of tensors (extension `binary_tensor_data`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.serve.oip.datatypes import BYTES, read_array, split_bytes
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.json_tensors import read_json_tensor
from headrace.serve.oip.messages import (
    InferRequest,
    Parameters,
    RequestedOutput,
    Tensor,
    check_numbers,
    read_schedule,
    refuse_extensions,
)
from headrace.serve.oip.messages import refuse_shared_memory as refuse_region

#: JSON takes up many times its size once it is read, and the front's thread to read it.
MAX_JSON_BYTES = 4 * 1024 * 1024

#: Raises OipError unless the model takes a tensor of this name, datatype and shape.
CheckInput = Callable[[str, str, Sequence[int]], object]


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, str | int | float | bool] = {}
    data: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, str | int | float | bool] = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Output] = []
    id: str = ""
    parameters: dict[str, str | int | float | bool] = {}


_decoder = msgspec.json.Decoder(_Request)


def read_http_request(body: bytes | memoryview, json_length: str, check_input: CheckInput) -> InferRequest:
    """Return the request that a body holds; its tensors are copies.

    Args:
        body: As it came.
        json_length: The header `Inference-Header-Content-Length`: bytes of the JSON in front; empty: all of it is JSON.
        check_input: Of the model, asked before the content of a tensor is read.

    Raises:
        OipError: If it is not one, or not for this model.
    """
    size = _read_length(json_length, len(body))
    if size > MAX_JSON_BYTES:
        raise OipError(
            "oip.json_size", f"the JSON has {size:,} bytes, limit {MAX_JSON_BYTES:,}; send tensors as binary data", 413
        )
    view = memoryview(body)
    try:
        read = _decoder.decode(view[:size])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OipError("oip.json", f"the request is not the JSON of an inference request: {error}") from None
    check_numbers(len(read.inputs), len(read.outputs))
    inputs, rest = [], view[size:]
    for one in read.inputs:
        check_input(one.name, one.datatype, one.shape)
        tensor, rest = _read_input(one, rest)
        inputs.append(tensor)
    if rest:
        raise OipError("oip.size", f"{len(rest):,} bytes came behind the JSON that no binary_data_size speaks of")
    is_urgent, timeout_us = read_schedule(read.parameters)
    return InferRequest(
        inputs=inputs,
        outputs=[_read_output(one) for one in read.outputs],
        id=read.id,
        is_binary=bool(_read_flag(read.parameters, "binary_data_output", "the request")),
        is_urgent=is_urgent,
        timeout_us=timeout_us,
    )


def _read_length(text: str, body_size: int) -> int:
    if not text:
        return body_size
    length = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(body_size)) else -1
    if not 0 <= length <= body_size:
        raise OipError(
            "oip.json_length",
            f"Inference-Header-Content-Length is {text!r:.40}; expected the bytes of the JSON, 0 to {body_size}",
        )
    return length


def _read_input(one: _Input, rest: memoryview) -> tuple[Tensor, memoryview]:
    """Return a tensor, and what is left of the bytes behind the JSON."""
    name = f"input {one.name}"
    refuse_region(one.parameters, name)
    size: Any = one.parameters.get("binary_data_size")
    if size is None:
        if not bytes(one.data):
            raise OipError("oip.no_data", f"{name} has neither data nor the parameter binary_data_size")
        tensor = read_json_tensor(bytes(one.data), name, one.datatype, one.shape)
        return Tensor(one.name, one.datatype, tensor.shape, tensor.data), rest
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(rest):
        raise OipError(
            "oip.size", f"{name} has binary_data_size {size!r:.40}; {len(rest):,} bytes are left behind the JSON"
        )
    if bytes(one.data):
        raise OipError("oip.no_data", f"{name} has data and binary_data_size; expected one of them")
    return read_raw(one.name, one.datatype, one.shape, rest[:size]), rest[size:]


def _read_output(one: _Output) -> RequestedOutput:
    refuse_extensions(one.parameters, one.name)
    return RequestedOutput(one.name, _read_flag(one.parameters, "binary_data", one.name))


def read_raw(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> Tensor:
    """Return a tensor that came as bytes.

    Raises:
        OipError: If they do not fill its shape.
    """
    said = f"input {name}"
    data = split_bytes(raw, shape, said) if datatype == BYTES else read_array(raw, datatype, shape, said)
    return Tensor(name, datatype, tuple(shape), data)


def _read_flag(parameters: Parameters, name: str, where: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise OipError("oip.parameter", f"parameter {name} of {where:.100} is {value!r:.40}; expected true or false")
    return value
