"""A response -> the body of an HTTP answer: JSON, and behind it the bytes of the outputs that were asked for so."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.serve.http.request import Answer
from headrace.serve.oip.datatypes import join_bytes, write_array
from headrace.serve.oip.json_tensors import write_json_data
from headrace.serve.oip.messages import InferRequest, InferResponse, Tensor

JSON_LENGTH = "Inference-Header-Content-Length"


def write_http_response(response: InferResponse, request: InferRequest) -> Answer:
    """Return the answer to a request.

    Raises:
        OipError: If an output was asked for as JSON, which cannot hold it.
    """
    wanted = {one.name: one.is_binary for one in request.outputs}
    outputs, parts = [], [b""]
    for tensor in response.outputs:
        is_binary = wanted.get(tensor.name)
        raw = write_raw(tensor) if (request.is_binary if is_binary is None else is_binary) else None
        outputs.append(_describe(tensor, raw))
        parts.append(raw or b"")
    said: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        said["id"] = response.id
    if response.plan_id:
        said["parameters"] = {"plan_id": response.plan_id}
    parts[0] = msgspec.json.encode({**said, "outputs": outputs})
    headers = (("X-Headrace-Plan", response.plan_id),) if response.plan_id else ()
    if not any("parameters" in output for output in outputs):
        return Answer(200, parts[0], headers=headers)
    length = (JSON_LENGTH, str(len(parts[0])))
    return Answer(200, b"".join(parts), "application/octet-stream", (*headers, length))


def write_raw(tensor: Tensor) -> bytes:
    """Return a tensor as bytes."""
    return join_bytes(tensor.data) if isinstance(tensor.data, list) else write_array(tensor.data)


def _describe(tensor: Tensor, raw: bytes | None) -> dict[str, Any]:
    said: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if raw is None:
        return {**said, "data": write_json_data(tensor)}
    return {**said, "parameters": {"binary_data_size": len(raw)}}
