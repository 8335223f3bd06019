"""Messages of gRPC <-> requests and responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.serve.oip.datatypes import BYTES, NUMPY_TYPES, count_elements
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.http_request import CheckInput, read_raw
from headrace.serve.oip.http_response import write_raw
from headrace.serve.oip.messages import (
    InferRequest,
    InferResponse,
    Parameters,
    RequestedOutput,
    Tensor,
    check_numbers,
    read_schedule,
    refuse_extensions,
    refuse_shared_memory,
)

#: Which field of a tensor's contents holds a type; FP16 and BF16 come as raw bytes only.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


def read_grpc_request(message: Any, check_input: CheckInput) -> InferRequest:
    """Return the request that a `ModelInferRequest` holds.

    Args:
        message: The message.
        check_input: Of the model, asked before the content of a tensor is read.

    Raises:
        OipError: If it is not one, or not for this model.
    """
    check_numbers(len(message.inputs), len(message.outputs))
    raw: Sequence[bytes] = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise OipError(
            "oip.size",
            f"the request has {len(message.inputs)} inputs and {len(raw)} raw_input_contents; expected as many",
        )
    inputs = []
    for index, one in enumerate(message.inputs):
        check_input(one.name, one.datatype, one.shape)
        refuse_shared_memory(_read_parameters(one.parameters), f"input {one.name}")
        if raw:
            inputs.append(read_raw(one.name, one.datatype, one.shape, raw[index]))
        else:
            inputs.append(_read_contents(one))
    for wanted in message.outputs:
        refuse_extensions(_read_parameters(wanted.parameters), wanted.name)
    is_urgent, timeout_us = read_schedule(_read_parameters(message.parameters))
    return InferRequest(
        inputs=inputs,
        outputs=[RequestedOutput(one.name) for one in message.outputs],
        id=message.id,
        is_urgent=is_urgent,
        timeout_us=timeout_us,
    )


def write_grpc_response(response: InferResponse, messages: Any) -> bytes:
    """Return a `ModelInferResponse`, its outputs as raw bytes.

    Args:
        response: What it says.
        messages: Of `grpc_messages.make_messages`.
    """
    outputs = [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in response.outputs]
    plan = [{"key": "plan_id", "value": {"string_param": response.plan_id}}] if response.plan_id else []
    message = messages["ModelInferResponse"](
        model_name=response.model,
        model_version=response.version,
        id=response.id,
        parameters=plan,
        outputs=outputs,
        raw_output_contents=[write_raw(one) for one in response.outputs],
    )
    written: bytes = message.SerializeToString()
    return written


def _read_contents(one: Any) -> Tensor:
    name, datatype, shape = f"input {one.name}", one.datatype, tuple(one.shape)
    if datatype not in _CONTENTS:
        raise OipError("oip.datatype", f"{name} has datatype {datatype}; expected it in raw_input_contents")
    values = getattr(one.contents, _CONTENTS[datatype])
    number = count_elements(shape, name)
    if len(values) != number:
        where = _CONTENTS[datatype]
        raise OipError("oip.size", f"{name} has {len(values):,} {where}; shape {list(shape)} has {number:,}")
    if datatype == BYTES:
        return Tensor(one.name, datatype, shape, list(values))
    try:
        array = np.array(values, NUMPY_TYPES[datatype]).reshape(shape)
    except OverflowError as error:
        raise OipError("oip.value", f"{name} cannot be read as {datatype}: {error}") from None
    return Tensor(one.name, datatype, shape, array)


def _read_parameters(entries: Any) -> Parameters:
    chosen = {entry.key: entry.value.WhichOneof("choice") for entry in entries}
    return {entry.key: getattr(entry.value, chosen[entry.key]) for entry in entries if chosen[entry.key]}
