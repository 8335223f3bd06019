"""The body of an HTTP request: JSON, and the bytes of tensors behind it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serve.oip.datatypes import join_bytes
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.http_request import MAX_JSON_BYTES, read_http_request
from headrace.serve.oip.http_response import write_http_response
from headrace.serve.oip.messages import InferRequest, InferResponse, RequestedOutput, Tensor


def take_all(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Take any input."""


def head(**parts: Any) -> dict[str, Any]:
    """Return the JSON of a request of two bytes."""
    one = {"name": "x", "shape": [2], "datatype": "UINT8", "data": [1, 2], **parts.pop("input", {})}
    return {"inputs": [{key: value for key, value in one.items() if value is not None}], **parts}


def read(said: dict[str, Any] | bytes, behind: bytes = b"", length: str | None = None) -> InferRequest:
    """Read a request as it would come."""
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    length = (str(len(text)) if behind else "") if length is None else length
    return read_http_request(memoryview(text + behind), length, take_all)


def test_json_alone_is_a_request() -> None:
    """With its id, what it wants and when."""
    request = read(
        head(id="42", outputs=[{"name": "y"}], parameters={"priority": 1, "timeout": 5_000, "own": "thing"}, extra=1)
    )
    assert isinstance(request.inputs[0].data, np.ndarray)
    assert request.inputs[0].data.tolist() == [1, 2]
    assert (request.id, request.outputs) == ("42", [RequestedOutput("y")])
    assert (request.is_urgent, request.timeout_us, request.is_binary) == (True, 5_000, False)


def test_tensors_come_behind_the_json_in_their_order() -> None:
    """Each as long as its binary_data_size says."""
    images = join_bytes([b"\xff\xd8", b""])
    sizes = [("a", "BYTES", [2, 1], len(images)), ("b", "FP16", [1], 2)]
    said = {
        "inputs": [
            {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}}
            for name, kind, shape, size in sizes
        ],
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
    }
    request = read(said, images + np.array([1.5], "<f2").tobytes())
    assert request.inputs[0].data == [b"\xff\xd8", b""]
    assert np.array_equal(request.inputs[1].data, [1.5])
    assert request.is_binary
    assert request.outputs == [RequestedOutput("y", is_binary=False)]


@pytest.mark.parametrize(
    ("said", "behind", "length", "code"),
    [
        (b"", b"", None, "oip.json"),
        (b"{}", b"", None, "oip.json"),
        (b"[]", b"", None, "oip.json"),
        (b"\xff", b"", None, "oip.json"),
        (b'{"inputs":NaN}', b"", None, "oip.json"),
        (b'{"inputs":' * 100_000, b"", None, "oip.json"),
        (b'{"x":' + b"[" * 1_000_000, b"", None, "oip.json"),
        (head(input={"shape": [2.5]}), b"", None, "oip.json"),
        (head(input={"shape": [10**30]}), b"", None, "oip.shape"),
        (head(input={"name": 5}), b"", None, "oip.json"),
        (head(input={"data": None}), b"", None, "oip.no_data"),
        (head(parameters={"x": [1]}), b"", None, "oip.json"),
        (head(parameters={"priority": 3}), b"", None, "oip.parameter"),
        (head(parameters={"priority": -1}), b"", None, "oip.parameter"),
        (head(parameters={"timeout": 1.5}), b"", None, "oip.parameter"),
        (head(parameters={"timeout": True}), b"", None, "oip.parameter"),
        (head(parameters={"timeout": 10**18}), b"", None, "oip.parameter"),
        (head(parameters={"binary_data_output": 1}), b"", None, "oip.parameter"),
        (head(parameters={"sequence_id": 7}), b"", None, "oip.sequence"),
        (head(input={"parameters": {"shared_memory_region": "r"}}), b"", None, "oip.shared_memory"),
        (head(outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}]), b"", None, "oip.shared_memory"),
        (head(outputs=[{"name": "y", "parameters": {"classification": 3}}]), b"", None, "oip.classification"),
        (head(input={"data": None, "parameters": {"binary_data_size": 3}}), b"12", None, "oip.size"),
        (head(input={"data": None, "parameters": {"binary_data_size": -1}}), b"12", None, "oip.size"),
        (head(input={"data": None, "parameters": {"binary_data_size": True}}), b"1", None, "oip.size"),
        (head(input={"data": None, "parameters": {"binary_data_size": "2"}}), b"12", None, "oip.size"),
        (head(input={"data": None, "parameters": {"binary_data_size": 1}}), b"1", None, "oip.size"),
        (head(input={"parameters": {"binary_data_size": 2}}), b"12", None, "oip.no_data"),
        (head(), b"12", None, "oip.size"),
        (head(), b"", "-1", "oip.json_length"),
        (head(), b"", "1e3", "oip.json_length"),
        (head(), b"", "9" * 30, "oip.json_length"),
        (head(), b"", "²", "oip.json_length"),
        (head(), b"", "0", "oip.json"),
        (b" " * (MAX_JSON_BYTES + 1), b"", None, "oip.json_size"),
    ],
)
def test_what_is_no_request_is_refused(said: Any, behind: bytes, length: str | None, code: str) -> None:
    """With a code, whatever it is."""
    with pytest.raises(OipError) as refused:
        read(said, behind, length)
    assert refused.value.code == code


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_thousands_of_tensors_are_not_looked_at(what: str) -> None:
    """Each takes time of the thread that reads for all clients."""
    looked: list[str] = []
    one = {"name": "x", "shape": [1], "datatype": "UINT8", "data": [1]}
    said = json.dumps({"inputs": [one], what: [one] * 10_000}).encode()
    with pytest.raises(OipError) as refused:
        read_http_request(said, "", lambda name, datatype, shape: looked.append(name))
    assert (refused.value.code, looked) == (f"oip.{what}", [])


def test_the_model_is_asked_before_a_tensor_is_read() -> None:
    """So that none is made for a name that nobody knows."""

    def refuse(name: str, datatype: str, shape: Sequence[int]) -> None:
        raise OipError("oip.unknown_input", f"{name} {datatype} {shape}")

    with pytest.raises(OipError, match=r"x UINT8 \[2\]"):
        read_http_request(json.dumps(head(input={"data": ["no number"]})).encode(), "", refuse)


@settings(max_examples=200)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 200))
def test_any_body_is_read_or_refused(noise: bytes, cut: int, length: int) -> None:
    """A good request with something else in its middle is no crash."""
    good = json.dumps(head(input={"data": None, "parameters": {"binary_data_size": 2}})).encode() + b"12"
    try:
        request = read_http_request(good[:cut] + noise + good[cut + len(noise) :], str(length), take_all)
    except OipError:
        return
    assert len(request.inputs) <= 1


def test_outputs_go_as_they_were_asked_for() -> None:
    """Binary ones behind the JSON, the others in it."""
    outputs = [
        Tensor("a", "FP32", (1, 2), np.array([[1.5, np.nan]], "f4")),
        Tensor("b", "BYTES", (1, 1), [b"\xff"]),
        Tensor("c", "INT64", (1, 1), np.array([[7]])),
    ]
    response = InferResponse(model="m", version="1", id="42", outputs=outputs, plan_id="p")
    request = InferRequest(inputs=[], is_binary=True, outputs=[RequestedOutput("c", is_binary=False)])
    answer = write_http_response(response, request)
    length = int(dict(answer.headers)["Inference-Header-Content-Length"])
    said, behind = json.loads(answer.body[:length]), answer.body[length:]
    assert answer.content_type == "application/octet-stream"
    assert behind == outputs[0].data.tobytes() + b"\1\0\0\0\xff"
    assert [one["parameters"]["binary_data_size"] for one in said["outputs"][:2]] == [8, 5]
    assert said["outputs"][2] == {"name": "c", "datatype": "INT64", "shape": [1, 1], "data": [7]}
    assert (said["model_name"], said["model_version"], said["id"]) == ("m", "1", "42")
    assert said["parameters"] == {"plan_id": "p"}
