"""Results -> JSON, with the standard library as the oracle."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.errors import DeliveryRejected
from headrace.delivery.encoding import encode, encode_any_number


@pytest.mark.parametrize(
    "record", [None, True, 3, 2**70, 0.1, "é\n😀", [1, [2.5]], {"a": {"b": None}}, [], {}, -(2**63), 1e300]
)
def test_plain_values(record: Any) -> None:
    """What JSON knows comes back as it was."""
    assert json.loads(encode(record)) == record


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (np.arange(4), [0, 1, 2, 3]),
        (np.ones((2, 2)), [[1.0, 1.0], [1.0, 1.0]]),
        (np.array(3), 3),
        (np.float32(0.5), 0.5),
        (np.float16(1.5), 1.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.empty((0, 4)), []),
        ({"boxes": [np.zeros(2)], np.int64(3): np.uint8(9)}, {"boxes": [[0.0, 0.0]], "3": 9}),
        ([None, 0.5, "null"], [None, 0.5, "null"]),
    ],
    ids=str,
)
def test_numpy(record: Any, expected: Any) -> None:
    """Arrays become lists and scalars numbers, wherever they stand; None stays null."""
    assert json.loads(encode(record)) == expected


LOOP: list[Any] = []
LOOP.append(LOOP)


@dataclasses.dataclass
class Score:
    """A result of a class of the user's own."""

    value: float


class Scored(msgspec.Struct):
    """A result of another kind of class."""

    value: Any


@pytest.mark.parametrize(
    ("record", "code", "cause"),
    [
        (object(), "type", "it holds a value of type object"),
        ({"a": [1, {2j}]}, "type", "it holds a value of type complex"),
        (np.array([object()], object), "type", "it holds a value of type object"),
        ({(1, 2): 3}, "type", "it holds a value of type tuple"),
        ("\ud800", "encoding", "surrogates not allowed"),
        (LOOP, "encoding", "recursion"),
    ],
    ids=["object", "complex", "object array", "key", "surrogate", "loop"],
)
def test_what_json_cannot_carry(record: Any, code: str, cause: str) -> None:
    """It is rejected for good, with a code for its kind, the cause and what to return instead."""
    with pytest.raises(DeliveryRejected) as caught:
        encode(record)
    message = str(caught.value)
    assert message.startswith(f"result.{code}: the result cannot be written as JSON: ")
    assert cause in message
    assert "NumPy arrays from the last stage" in message


#: A record, and what it is with texts for what JSON has no number for.
NOT_FINITE: list[tuple[Any, Any]] = [
    ({"score": float("inf"), "none": None}, {"score": "Infinity", "none": None}),
    ([1.0, (2.0, float("nan"))], [1.0, [2.0, "NaN"]]),
    ({"scores": np.array([0.5, np.nan], np.float32)}, {"scores": [0.5, "NaN"]}),
    ({"box": [np.float32("-inf")]}, {"box": ["-Infinity"]}),
    (np.array([[1.0, None, np.nan]], object), [[1.0, None, "NaN"]]),
    ([Score(float("nan"))], [{"value": "NaN"}]),
    (Scored([Scored(np.float16("nan")), None]), {"value": [{"value": "NaN"}, None]}),
]


@pytest.mark.parametrize(("record", "in_words"), NOT_FINITE, ids=range(len(NOT_FINITE)))
def test_numbers_that_json_does_not_have(record: Any, in_words: Any) -> None:
    """They are rejected with a code of their own, wherever they stand, or written as texts where a caller can take those."""
    with pytest.raises(DeliveryRejected, match=r"^result\.not_finite: .*it holds NaN or infinity.* Parquet"):
        encode(record)
    assert json.loads(encode_any_number(record)) == in_words


def test_json_within_is_taken_as_it_is() -> None:
    """A part that is JSON already may hold null, and stands beside what is written in words."""
    assert encode([msgspec.Raw(b'{"a":null}')]) == b'[{"a":null}]'
    assert encode_any_number([msgspec.Raw(b'{"a":null}'), float("nan")]) == b'[{"a":null},"NaN"]'


def test_no_other_fault_is_written_in_words() -> None:
    """What has no text either is rejected with its own code."""
    with pytest.raises(DeliveryRejected, match=r"^result\.type: "):
        encode_any_number([float("nan"), 2j])


def nested(depth: int, inner: Any) -> Any:
    """Return lists in lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


def test_too_deep_beside_a_nan_is_a_rejection() -> None:
    """What is nested too deep for any of the steps is the result's fault, not a failure to be tried again."""
    with pytest.raises(DeliveryRejected, match=r"result\.encoding"):
        encode_any_number({"a": float("nan"), "b": nested(5 * sys.getrecursionlimit(), 1)})
    assert json.loads(encode_any_number({"a": float("nan"), "b": nested(600, 1)})) == {"a": "NaN", "b": nested(600, 1)}


@pytest.mark.parametrize("inner", [1, None], ids=str)
def test_none_costs_no_depth(inner: Any) -> None:
    """A result that holds None may be nested as deep as one without."""
    assert json.loads(encode({"a": None, "b": nested(600, inner)}))["b"] == nested(600, inner)


def test_a_long_double_is_a_number() -> None:
    """It is shortened to what JSON has; one that is beyond it, or complex, is rejected."""
    assert json.loads(encode({"x": np.longdouble(1.5), "y": np.ones(2, np.longdouble)})) == {"x": 1.5, "y": [1.0, 1.0]}
    with pytest.raises(DeliveryRejected, match=r"result\.type"):
        encode(np.clongdouble(1))


@pytest.mark.parametrize("key", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_a_key_that_is_no_number_is_not_finite(key: float) -> None:
    """It would arrive as the text `nan`; a text of that name is one."""
    with pytest.raises(DeliveryRejected, match=r"result\.not_finite"):
        encode({"scores": {key: 1.0}})
    assert json.loads(encode({"nan": 1.0, "inf": 2.0})) == {"nan": 1.0, "inf": 2.0}


def test_a_view_with_gaps_is_refused_as_the_item_that_it_is() -> None:
    """A memoryview whose bytes do not lie side by side fails its own item, with a reason."""
    with pytest.raises(DeliveryRejected, match=r"result\.encoding: .*contiguous"):
        encode({"mask": memoryview(b"abcdef")[::2]})
