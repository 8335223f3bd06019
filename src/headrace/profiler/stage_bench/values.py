"""Copies and comparison of the values between stages: arrays, bytes, text, and lists, tuples and dicts of them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from headrace.stages.stage import Joined


def copy_of(value: Any) -> Any:
    """Return a copy that stays as it is whatever stages do to the value, or the value itself where none can be made.

    Arrays keep the order of their axes in memory. What cannot be copied (an open file, a lock) is passed on.
    """
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, str | bytes | int | float | None):
        return value
    kind = type(value)
    if kind in (list, tuple):
        return kind(copy_of(part) for part in value)
    if kind is dict:
        return {key: copy_of(part) for key, part in value.items()}
    if kind is Joined:
        return Joined(copy_of(value.keep), copy_of(value.results))
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever a user's class does in its own __deepcopy__ or __reduce__
        return value


def is_same(first: Any, second: Any) -> bool:
    """Return whether two values are equal; of kinds that cannot be compared, True."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        # Not a number is equal to itself here: a stage that leaves it alone has changed nothing.
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind in "fc"))
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(is_same(first[key], second[key]) for key in first)
    if isinstance(first, Joined):
        return is_same(first.keep, second.keep) and is_same(first.results, second.results)
    if isinstance(first, str | bytes | int | float):
        return first is second or bool(first == second)
    return True
