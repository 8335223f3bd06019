"""Results become outputs: by rules that do not depend on how many items a request has."""

from typing import Any

import numpy as np
import pytest

from headrace.base.errors import DeliveryRejected
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.items import outputs_of, payloads_of, read_row
from headrace.serve.oip.messages import RequestedOutput, Tensor


def put_out(*results: Any, wanted: str = "") -> dict[str, tuple[str, tuple[int, ...], Any]]:
    """Return {output: (datatype, shape, elements)} of a request with these results."""
    rows = [read_row(result, whole=wanted == "result") for result in results]
    tensors = outputs_of(rows, [RequestedOutput(wanted)] if wanted else [])
    return {
        one.name: (one.datatype, one.shape, one.data if isinstance(one.data, list) else one.data.tolist())
        for one in tensors
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.array([1, 2], "f4"), ("FP32", (2, 2), [[1, 2], [1, 2]])),
        (np.float16(0.5), ("FP16", (2, 1), [[0.5], [0.5]])),
        (7, ("INT64", (2, 1), [[7], [7]])),
        (True, ("BOOL", (2, 1), [[True], [True]])),
        (0.25, ("FP64", (2, 1), [[0.25], [0.25]])),
        ("ü", ("BYTES", (2, 1), ["ü".encode()] * 2)),
        (b"\xff", ("BYTES", (2, 1), [b"\xff"] * 2)),
        ([1, {"a": None}], ("BYTES", (2, 1), [b'[1,{"a":null}]'] * 2)),
        (None, ("BYTES", (2, 1), [b"null"] * 2)),
        ({}, ("BYTES", (2, 1), [b"{}"] * 2)),
        ({1: 2}, ("BYTES", (2, 1), [b'{"1":2}'] * 2)),
    ],
)
def test_a_result_that_is_no_dict_is_one_output(result: Any, expected: Any) -> None:
    """Numbers stay numbers, text and bytes are bytes, all else is JSON."""
    assert put_out(result, result) == {"result": expected}


def test_a_dict_is_an_output_for_each_key() -> None:
    """And as JSON where its whole is asked for."""
    results = [{"label": "cat", "score": 1}, {"label": "dog", "score": 0.5}]
    assert put_out(*results) == {
        "label": ("BYTES", (2, 1), [b"cat", b"dog"]),
        "score": ("FP64", (2, 1), [[1.0], [0.5]]),
    }
    rows = [read_row(result) for result in results]
    assert len(outputs_of(rows, [RequestedOutput("score")] * 1_000)) == 1
    assert put_out(*results, wanted="score") == {"score": ("FP64", (2, 1), [[1.0], [0.5]])}
    whole = ("BYTES", (2, 1), [b'{"label":"cat","score":1}', b'{"label":"dog","score":0.5}'])
    assert put_out(*results, wanted="result") == {"result": whole}


def test_a_row_is_a_copy() -> None:
    """What `process` returned may be the runtime's buffer, which the next batch overwrites."""
    result = np.zeros(2)
    row = read_row(result)
    result[:] = 1
    assert np.array_equal(row["result"], [0, 0])


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([np.zeros(2), np.zeros(3)], "oip.ragged"),
        ([1, None], "oip.ragged"),
        ([{"a": 1}, {"b": 1}], "oip.output"),
    ],
)
def test_items_that_are_not_alike_are_said_to_be(results: list[Any], code: str) -> None:
    """One tensor cannot hold them."""
    with pytest.raises(OipError) as refused:
        put_out(*results)
    assert refused.value.code == code


def test_an_output_that_is_not_there_is_named() -> None:
    """With those that are."""
    with pytest.raises(OipError, match="no output depth for all items; there is label"):
        put_out({"label": 1}, wanted="depth")


@pytest.mark.parametrize("result", [object(), "\ud800", {"a": {"b": object()}}])
def test_what_cannot_be_sent_fails_its_item(result: Any) -> None:
    """With a code, in the delivery."""
    with pytest.raises(DeliveryRejected) as rejected:
        read_row(result)
    assert rejected.value.code.startswith("result.")


def test_items_are_views_of_their_tensor() -> None:
    """One item of numbers is an array too."""
    items = payloads_of([Tensor("input", "FP32", (2,), np.array([1, 2], "f4"))])
    assert [(type(item), item.shape) for item in items] == [(np.ndarray, ())] * 2
    assert payloads_of([Tensor("image", "BYTES", (2, 1), [b"a", b"b"])]) == [b"a", b"b"]


@pytest.mark.parametrize("number", [0, 2])
def test_there_is_one_input(number: int) -> None:
    """Two would be two payloads of one job."""
    with pytest.raises(OipError) as refused:
        payloads_of([Tensor("x", "BYTES", (1,), [b""])] * number)
    assert refused.value.code == "oip.inputs"
