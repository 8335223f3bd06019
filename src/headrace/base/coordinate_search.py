"""Coordinate search: set one axis of a space after the other to its best value until no axis gains any more.

This is what all searches over workers, threads and batches share: the axes, the order in which they are tried, and when to
stop. What a point is worth is the caller's business: `tune` predicts whole Plans, `optimize` times the calls of one model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")
P = TypeVar("P")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Axis(Generic[V]):
    """One setting and what it may be."""

    key: str
    """Its name; in a Plan's space its path, such as `stages.fetch.workers`."""
    values: tuple[V, ...]
    """In the order in which they are tried: the smallest, in what it takes of the machine, first."""
    patience: int | None = None
    """Values without a gain, one after the other, after which the rest is not tried; None: all are."""


def climb(start: P, passes: Iterable[Sequence[A]], improve: Callable[[A, P], P | None]) -> P:
    """Return the point at which a whole pass gained nothing, or the passes ended.

    Args:
        start: Where the search begins.
        passes: The axes of each pass, in the order in which they are tried; may be endless.
        improve: (axis, point) -> the best point along that axis; None if no value is better.
    """
    point = start
    for axes in passes:
        is_improved = False
        for axis in axes:
            better = improve(axis, point)
            if better is not None:
                point, is_improved = better, True
        if not is_improved:
            return point
    return point


def try_in_order(axis: Axis[V], is_better: Callable[[V], bool]) -> bool:
    """Try the values of an axis until its patience ends; return whether any was better.

    Args:
        axis: Its values are tried in their order.
        is_better: Tries one value, takes it over if it is better than what is in use, and says so.
    """
    num_failed, found = 0, False
    for value in axis.values:
        if is_better(value):
            num_failed, found = 0, True
            continue
        num_failed += 1
        if num_failed == axis.patience:
            break
    return found


def powers_of_two(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and `most` itself, which is at least 1."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))
