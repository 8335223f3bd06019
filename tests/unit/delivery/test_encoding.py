"""Results -> JSON, with the standard library as the oracle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import DeliveryRejected
from headrace.delivery.encoding import encode


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


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        (object(), "it holds a value of type object"),
        ({"a": [1, {2j}]}, "it holds a value of type complex"),
        (np.array([object()], object), "it holds a value of type object"),
        ({(1, 2): 3}, "it holds a value of type tuple"),
        ("\ud800", "surrogates not allowed"),
        (LOOP, "recursion"),
        ({"score": float("inf")}, "NaN or infinity"),
        ([1.0, (2.0, float("nan"))], "NaN or infinity"),
        ({"scores": np.array([0.5, np.nan], np.float32)}, "NaN or infinity"),
        ({"box": [np.float32("nan")]}, "NaN or infinity"),
    ],
    ids=["object", "complex", "object array", "key", "surrogate", "loop", "infinity", "nan", "nan array", "nan scalar"],
)
def test_what_json_cannot_carry(record: Any, cause: str) -> None:
    """It is rejected for good, with the cause and what to return instead."""
    with pytest.raises(DeliveryRejected) as caught:
        encode(record)
    message = str(caught.value)
    assert message.startswith("the result cannot be written as JSON: ")
    assert cause in message
    assert "NumPy arrays from the last stage" in message
