"""Makes one value of the values of a batch, and puts tensors where a GPU reads them by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError

_NUMBERS = (bool, int, float, np.generic)


def has_gpu() -> bool:
    """Return whether PyTorch is in use and has a CUDA device."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def pin(value: Any) -> Any:
    """Return a batch with its tensors in pinned memory, from where copies to a GPU need not be waited for.

    Raises:
        SettingsError: If there is no GPU.
    """
    if not has_gpu():
        raise SettingsError("pin_memory = True, and PyTorch has no CUDA device here; None pins where there is one")
    return _pin(value, sys.modules["torch"].Tensor)


def _pin(value: Any, tensor: type) -> Any:
    if isinstance(value, tensor):
        return value.pin_memory()  # type: ignore[attr-defined]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_pin(one, tensor) for one in value))
    if isinstance(value, tuple | list):
        return type(value)(_pin(one, tensor) for one in value)
    if isinstance(value, dict):
        return {key: _pin(one, tensor) for key, one in value.items()}
    return value


class Rows:
    """The arrays of a batch, one for each that a sample asks for; what is written to their rows need not be copied there.

    Large images that wait to be copied pass through the memory twice more, where two threads decode faster than it is.

    Args:
        size: Samples of the batch, at most.
    """

    def __init__(self, size: int) -> None:
        self._size, self._row, self._asked = size, 0, 0
        self.arrays: list[np.ndarray] = []

    def begin(self, row: int) -> None:
        """Go on with the sample of a row."""
        self._row, self._asked = row, 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return this sample's row of the next array; memory of its own if it has another shape or type there."""
        number, self._asked = self._asked, self._asked + 1
        if number == len(self.arrays):
            self.arrays.append(np.empty((self._size, *shape), dtype))
        whole = self.arrays[number]
        return whole[self._row, ...] if (whole.shape[1:], whole.dtype) == (shape, dtype) else np.empty(shape, dtype)


def _find_whole(values: list[np.ndarray], arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the first rows of an array if values are these, one after the other; else None."""
    for whole in arrays:
        if all(_is_same(one, whole[row, ...]) for row, one in zip(range(len(whole)), values, strict=False)):
            return whole[: len(values)]
    return None


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays are the same memory, read in the same way."""
    return _where(one) == _where(other)


def _where(array: np.ndarray) -> tuple[object, ...]:
    return array.__array_interface__["data"], array.shape, array.strides, array.dtype


def _form_of(value: Any) -> Any:
    """Return what values must have in common to be stacked; None if they are not, and become a list."""
    if isinstance(value, _NUMBERS):
        return "number"
    if isinstance(value, tuple):
        return len(value)
    if isinstance(value, dict):
        return frozenset(value)
    return type(value) if hasattr(value, "shape") else None


def _shown(value: Any) -> str:
    keys = f" with {', '.join(map(str, value))}" if isinstance(value, dict) else ""
    size = f" of {len(value)}" if isinstance(value, tuple) else ""
    return f"{type(value).__name__}{size}{keys}"


def stack(values: list[Any], arrays: Sequence[np.ndarray] = ()) -> Any:
    """Return values as one: arrays and tensors stacked, numbers an array, tuples and dicts by their parts, others a list.

    Args:
        values: One of each sample.
        arrays: Whose rows they may be, in order, and then need not be copied.

    Raises:
        ValueError: If they are of several kinds, or arrays have several shapes.
    """
    first = next(iter(islice(values, 1)), None)
    torch = sys.modules.get("torch")  # whoever made a tensor has it
    if len(unlike := {_form_of(one): one for one in values}) > 1:
        raise ValueError(
            f"a batch has values such as {' and '.join(map(_shown, unlike.values()))}, which cannot be stacked: transform "
            "should return one kind, or collate=list leaves them as they are"
        )
    if isinstance(first, np.ndarray) or (torch is not None and isinstance(first, torch.Tensor)):
        other = next((one.shape for one in values if one.shape != first.shape), first.shape)
        if other != first.shape:
            raise ValueError(
                f"a batch has arrays of the shapes {tuple(first.shape)} and {tuple(other)}, which cannot be stacked: transform "
                "should return one shape, or collate=list leaves them as they are"
            )
        if not isinstance(first, np.ndarray):
            return torch.stack(values)  # type: ignore[union-attr]
        whole = _find_whole(values, arrays)
        return np.stack(values) if whole is None else whole
    if isinstance(first, _NUMBERS):
        return np.asarray(values)
    if isinstance(first, tuple):
        return tuple(stack(list(column), arrays) for column in zip(*values, strict=True))
    if isinstance(first, dict):
        return {key: stack([value[key] for value in values], arrays) for key in first}
    return values
