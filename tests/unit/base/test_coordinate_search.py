"""Coordinate search: the order of axes and values, and when it stops."""

from __future__ import annotations

import itertools

from headrace.base.coordinate_search import Axis, climb, powers_of_two, try_in_order

WORKERS, BATCH = Axis("workers", (1, 2, 3, 4)), Axis("batch", (1, 2, 4, 8))
Point = dict[str, int]


def test_axes_are_passed_until_none_gains() -> None:
    """Workers pay only with large batches: the second pass finds what the first could not, and the third ends the search."""
    tried: list[str] = []

    def rate(point: Point) -> int:
        return point["batch"] + (point["workers"] if point["batch"] == 8 else -point["workers"])

    def improve(axis: Axis[int], point: Point) -> Point | None:
        tried.append(axis.key)
        best = max(({**point, axis.key: value} for value in axis.values), key=rate)
        return best if rate(best) > rate(point) else None

    found = climb({"workers": 1, "batch": 1}, itertools.repeat([WORKERS, BATCH]), improve)
    assert found == {"workers": 4, "batch": 8}
    assert tried == ["workers", "batch"] * 3


def test_the_passes_may_end_the_search() -> None:
    """What is found by then is returned."""
    assert climb(0, [["a"], ["a"]], lambda axis, point: point + 1) == 2


def test_growing_ends_where_its_patience_does() -> None:
    """After two failures in a row; a success between them begins the count anew."""
    tried: list[int] = []

    def is_better(value: int) -> bool:
        tried.append(value)
        return value == 2

    assert try_in_order(Axis("batch", (1, 2, 4, 8, 16), patience=2), is_better)
    assert tried == [1, 2, 4, 8]
    assert not try_in_order(Axis("batch", (4, 8)), is_better)


def test_the_most_is_among_the_powers_of_two() -> None:
    """Also where it is none."""
    assert [powers_of_two(most) for most in (1, 2, 6)] == [(1,), (1, 2), (1, 2, 4, 6)]
