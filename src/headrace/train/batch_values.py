"""The values in a batch, without calling a method of a class of the user's: that may do anything, and may be dear."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable
from typing import Any


def values_of(batch: Any) -> Iterable[Any] | None:
    """Return the values of a dict, list or tuple, or of a class derived from one; None for everything else."""
    if isinstance(batch, UserDict):  # a batch of Hugging Face
        batch = batch.data
    if isinstance(batch, dict):
        return dict.values(batch)
    if isinstance(batch, list):
        return _Iterated(list.__iter__, batch)
    if isinstance(batch, tuple):
        return _Iterated(tuple.__iter__, batch)
    return None


class _Iterated:
    """Iterates by the method of the built-in class."""

    def __init__(self, begin: Any, values: Any) -> None:
        self._begin, self._values = begin, values

    def __iter__(self) -> Any:
        return self._begin(self._values)
