"""The memory that batches live in: one array per worker, written in place where the stage before allows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.pipeline.sizes import holds_only_plain
from headrace.stages.images import slot


class BatchBuffer:
    """Stacks inputs of one shape; one per worker, because the next batch overwrites it.

    Fresh memory for each batch would cost a page fault per 4 KiB.

    Args:
        max_size: Largest batch.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._array: np.ndarray | None = None

    def reserve(self, index: int) -> None:
        """Offer the place of the index-th input to what this thread computes next."""
        slot.array = self._array[index, ...] if self._array is not None and index < self._max_size else None

    def stack(self, values: Sequence[Any]) -> Any:
        """Return array (batch, ...) if all values are arrays of one shape and type, else the list of values."""
        first = values[0]
        if not isinstance(first, np.ndarray) or not all(
            isinstance(value, np.ndarray) and value.shape == first.shape and value.dtype == first.dtype
            for value in values
        ):
            return list(values)
        array = self._array
        if array is None or array.shape[1:] != first.shape or array.dtype != first.dtype or len(array) < len(values):
            array = np.empty((max(self._max_size, len(values)), *first.shape), first.dtype)
        for index, value in enumerate(values):
            place = array[index, ...]  # of numbers without a shape, too: a place and not its value
            # A value that was written in place and then turned starts at the same address and is not in place.
            if value.__array_interface__["data"] != place.__array_interface__["data"] or value.strides != place.strides:
                place[...] = value
        self._array = array
        return array[: len(values)]

    def holds(self, value: Any) -> bool:
        """Return whether a value is an array that lies in the buffer."""
        # An array that owns its memory cannot be a view; asking costs a tenth of comparing addresses.
        return (
            isinstance(value, np.ndarray)
            and value.base is not None
            and self._array is not None
            and bool(np.may_share_memory(self._array, value))
        )

    def detached(self, result: Any) -> Any:
        """Return a result with every array that is a view of the buffer copied: the next batch would overwrite it.

        Looks into lists, tuples and dicts, not member by member where there are only numbers and text: a mask as a list has
        50,000 of them.
        """
        if isinstance(result, np.ndarray):
            return result.copy() if self.holds(result) else result
        kind = type(result)
        if self._array is None or kind not in (list, tuple, dict):
            return result
        if kind is dict:
            return {key: self.detached(part) for key, part in result.items()}
        if holds_only_plain(result):
            return result
        return kind(self.detached(part) for part in result)
