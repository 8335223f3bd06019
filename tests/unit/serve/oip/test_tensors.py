"""Tensors <-> bytes and JSON: what goes out comes back, and what does not fit is said to."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.serve.oip.datatypes import BYTES, NUMPY_TYPES, join_bytes, name_of, read_array, split_bytes, write_array
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.json_tensors import read_json_tensor, write_json_data
from headrace.serve.oip.messages import Tensor

NUMBERS = [name for name in NUMPY_TYPES if name != "BF16"]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_come_back_from_bytes_and_from_json(datatype: str) -> None:
    """Extremes of each type survive both."""
    kind = NUMPY_TYPES[datatype]
    values = (
        [0, 1] if kind.kind == "b" else [np.iinfo(kind).min, np.iinfo(kind).max] if kind.kind in "iu" else [-0.5, 65504]
    )
    array = np.array([values], kind)
    assert name_of(kind) == datatype
    assert np.array_equal(read_array(write_array(array), datatype, array.shape, "x"), array)
    written = write_json_data(Tensor("x", datatype, array.shape, array))
    flat = str([bool(one) if kind.kind == "b" else one for one in written]).lower()
    for text in (flat, f"[{flat}]"):
        read = read_json_tensor(text.encode(), "x", datatype, array.shape).data
        assert isinstance(read, np.ndarray)
        assert read.dtype == kind
        assert np.array_equal(read, array)


def test_arrays_are_their_own_and_may_be_written_to() -> None:
    """The body's buffer serves another request afterwards."""
    raw = bytearray(b"\1\2\3")
    array = read_array(raw, "UINT8", (3,), "x")
    raw[0] = 9
    array[1] = 7
    assert array.tolist() == [1, 7, 3]
    assert raw[1] == 2


def test_bf16_is_widened() -> None:
    """NumPy has no such type; float32 holds its every value."""
    exact = np.array([1.5, -2.0, np.inf], "<f4")
    halves = (exact.view("<u4") >> 16).astype("<u2").tobytes()
    read = read_array(halves, "BF16", (3,), "x")
    assert read.dtype == np.float32
    assert np.array_equal(read, exact)


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_bytes_come_back(elements: list[bytes]) -> None:
    """Each behind its length, empty ones too."""
    assert split_bytes(join_bytes(elements), (len(elements), 1), "x") == elements


@given(st.binary(max_size=40), st.lists(st.integers(-2, 5), max_size=3))
def test_any_bytes_are_read_or_refused(raw: bytes, shape: list[int]) -> None:
    """What is read fills the shape and the bytes exactly."""
    try:
        elements = split_bytes(raw, shape, "x")
    except OipError:
        return
    assert join_bytes(elements) == raw


@pytest.mark.parametrize("shape", [(10**12,), (2**62, 4), (2**32, 2**32), (10**6, 10**6)])
@pytest.mark.parametrize("datatype", ["FP32", "INT8", BYTES])
def test_a_large_shape_takes_no_memory(shape: tuple[int, ...], datatype: str) -> None:
    """It is compared with the bytes that came before anything is made for it, in JSON too."""
    tracemalloc.start()
    try:
        with pytest.raises(OipError) as refused:
            (split_bytes(b"\0" * 8, shape, "x") if datatype == BYTES else read_array(b"\0" * 8, datatype, shape, "x"))
        with pytest.raises(OipError):
            read_json_tensor(b'["a"]' if datatype == BYTES else b"[1]", "x", datatype, shape)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.code == "oip.size"
    assert most < 1_000_000


@pytest.mark.parametrize(
    ("text", "datatype", "shape", "code"),
    [
        ("[1,2,3]", "INT32", [2], "oip.size"),
        ("[1]", "INT32", [2], "oip.size"),
        ("[]", "INT32", [1], "oip.size"),
        ("[[1,2],[3,4]]", "INT32", [4, 1], "oip.shape"),
        ("[[[1,2]]]", "INT32", [1, 2], "oip.shape"),
        ("[[1],[2,3]]", "INT32", [3, 1], "oip.value"),
        ("[[1,2],[3,4]", "INT32", [2, 2], "oip.value"),
        ("7", "INT32", [1], "oip.shape"),
        ("[1.5]", "INT32", [1], "oip.value"),
        ("[true]", "INT32", [1], "oip.value"),
        ("[1]", "BOOL", [1], "oip.value"),
        ("[256]", "UINT8", [1], "oip.value"),
        ("[-1]", "UINT64", [1], "oip.value"),
        ("[18446744073709551616]", "UINT64", [1], "oip.value"),
        ("[1e39]", "FP32", [1], "oip.value"),
        ("[70000]", "FP16", [1], "oip.value"),
        ("[NaN]", "FP32", [1], "oip.value"),
        ("[null]", "FP32", [1], "oip.value"),
        ("[" * 100_000 + "1", "FP32", [1], "oip.shape"),
        ('["a","b"]', BYTES, [1], "oip.shape"),
        ('[["a"],["b","c"]]', BYTES, [2, 1], "oip.shape"),
        ("[1]", BYTES, [1], "oip.value"),
        ("[1]", "FP32", [-1], "oip.shape"),
        ("[1]", "FP32", [2**63], "oip.shape"),
        ("[1]", "FP32", [10**4000, 10**4000], "oip.shape"),
        ("[1]", "FP32", [1] * 40, "oip.shape"),
    ],
)
def test_json_that_is_no_such_tensor_is_refused(text: str, datatype: str, shape: list[int], code: str) -> None:
    """With a code that says what is wrong: too many, the wrong lists, the wrong values."""
    with pytest.raises(OipError) as refused:
        read_json_tensor(text.encode(), "x", datatype, shape)
    assert refused.value.code == code


def test_texts_come_nested_or_flat() -> None:
    """BYTES in JSON are text."""
    for text in ('["a","ü,"]', '[["a"],["ü,"]]'):
        assert read_json_tensor(text.encode(), "x", BYTES, (2, 1)).data == [b"a", "ü,".encode()]


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (Tensor("x", "FP32", (1,), np.array([np.nan], "f4")), "oip.not_finite"),
        (Tensor("x", BYTES, (1,), [b"\xff"]), "oip.not_text"),
    ],
)
def test_json_that_cannot_hold_an_output_says_so(tensor: Tensor, code: str) -> None:
    """And names the way out, binary data."""
    with pytest.raises(OipError, match="binary data") as refused:
        write_json_data(tensor)
    assert refused.value.code == code


@settings(max_examples=300)
@given(
    st.text('[]1-.e, tru"', max_size=12),
    st.sampled_from(["INT8", "FP32", "BOOL", BYTES]),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_any_json_is_read_or_refused(text: str, datatype: str, shape: list[int]) -> None:
    """No text is a crash; what is read has the shape."""
    try:
        read = read_json_tensor(text.encode(), "x", datatype, shape).data
    except OipError:
        return
    assert len(read) == np.prod(shape) if isinstance(read, list) else read.shape == tuple(shape)
