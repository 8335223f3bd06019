"""How large values are, for queues that are bounded in bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from headrace.pipeline.sizes import holds_only_plain, measure

MB = 2**20
ARRAY = np.zeros(MB, np.uint8)


class Slotted:
    """An object without a dict."""

    __slots__ = ("pixels", "unset")

    def __init__(self) -> None:
        self.pixels = ARRAY


class Tensor:
    """An object that knows its size, as tensors do."""

    nbytes = MB


@dataclasses.dataclass
class Record:
    """An object with members."""

    pixels: Any
    name: str = "x"


class Struct(msgspec.Struct):
    """An object of msgspec's."""

    pixels: Any


class Broken:
    """An object whose size cannot be told."""

    @property
    def nbytes(self) -> int:
        """Fail."""
        raise ValueError("no size")


def contains_itself() -> list[Any]:
    """Return a list that is its own member."""
    value: list[Any] = [ARRAY]
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        ARRAY,
        b"x" * MB,
        bytearray(MB),
        memoryview(bytes(MB)),
        "x" * MB,
        "\u20ac" * (MB // 2),
        Image.new("L", (1024, 1024)),
        Image.new("RGB", (512, 512)),
        Tensor(),
        Slotted(),
        Record(ARRAY),
        Struct(ARRAY),
        [ARRAY],
        (b"x" * (MB // 2), bytearray(MB // 2)),
        {"image": {"pixels": {"rgb": ARRAY}}},
        [[ARRAY[: MB // 4]] * 2] * 2,
        [Record(ARRAY[: MB // 64])] * 64,
        ["x" * 1024] * 1024,
        [0.5] * (MB // 32),
        [[0.5] * 32] * 1024,
        {1: ARRAY, "two": None, "three": 3.0, "four": "text", "five": [1, 2]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_megabyte_counts_as_one(value: Any) -> None:
    """Whatever holds the memory, and some levels deep, it is counted, within a tenth."""
    assert measure(value)[0] == pytest.approx(MB, rel=0.1)


@pytest.mark.parametrize("value", [None, 3, 0.5, True, object(), Broken(), int, (), {}, [], np.float32(1)])
def test_what_is_small_counts_as_next_to_nothing(value: Any) -> None:
    """Numbers and empty things take no room in a queue, and what cannot be measured is no error."""
    assert measure(value)[0] <= 64


def test_objects_within_objects_are_not_looked_into() -> None:
    """A result that refers to its model is not as large as the model."""
    assert measure(Record(Record(ARRAY)))[0] < 1000


def test_what_holds_very_much_is_estimated() -> None:
    """A million members are not gone through one by one, and the sum is about right."""
    value = [b"x" * 100] * 1_000_000
    assert measure(value)[0] == pytest.approx(1e8, rel=0.05)


def test_arrays_have_a_shape_key() -> None:
    """Items of one batch share it."""
    assert measure(np.zeros((2, 3), np.float32)) == (24, "float32[2x3]")
    assert measure([1])[1] is None


def test_a_list_that_contains_itself_has_an_end() -> None:
    """It is counted once for each level that is looked at."""
    assert MB <= measure(contains_itself())[0] <= 5 * MB


def test_deep_nesting_is_cut() -> None:
    """A list of 10,000 levels is no recursion error."""
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    assert measure(value)[0] == 0


def test_types_made_on_the_way_do_not_grow_memory() -> None:
    """A stream of ever new types is measured, and only so many are remembered."""
    from headrace.pipeline import sizes

    for number in range(2_000):
        assert measure(type(f"T{number}", (), {"nbytes": 7})())[0] == 7
    assert len(sizes._sizes) <= 1_000


def test_plain_members() -> None:
    """Numbers and text hold no memory of others; lists, arrays and numbers of NumPy may."""
    assert holds_only_plain([1, 0.5, None, "x", True])
    assert not holds_only_plain([1, [2]])
    assert not holds_only_plain([np.zeros(1)])
