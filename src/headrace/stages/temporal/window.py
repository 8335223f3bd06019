"""The last frames together, for models that take several."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from headrace.base.settings import check

#: A minute of a thousand frames a second.
_MOST = 60_000


class Window:
    """Gives each frame the list of the last `length` values, the newest last.

    At the beginning the first stands for those before it.
    Arrays are copied once, so the memory is that of `length` values for each stream.

    Args:
        length: Values, >= 1.
        stack: Make one array (length, ...) of arrays of one shape, instead of a list.
    """

    def __init__(self, length: int, *, stack: bool = False) -> None:
        is_count = isinstance(length, int) and not isinstance(length, bool) and 1 <= length <= _MOST
        check(is_count, "length", length, f"a number from 1 to {_MOST}")
        self._stack = stack
        self._values: deque[Any] = deque(maxlen=length)

    def __call__(self, value: Any, seconds: float) -> Any:
        """Return the last values."""
        kept = value.copy() if isinstance(value, np.ndarray) else value
        last = self._values[-1] if self._values else None
        if self._stack and last is not None and np.shape(last) != np.shape(kept):
            self._values.clear()  # a camera that changes its size begins anew
        self._values.extend([kept] * (1 if self._values else self._values.maxlen or 1))
        return np.stack(list(self._values)) if self._stack else list(self._values)
