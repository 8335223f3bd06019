"""A sample of a stream of numbers in bounded memory."""

from __future__ import annotations

import math
import random
from array import array

import numpy as np


class Reservoir:
    """A uniform random sample of whole numbers from a stream of unknown length.

    References:
        Algorithm L; K.-H. Li, "Reservoir-sampling algorithms of time complexity O(n(1 + log(N/n)))", 1994. It draws how
        many values to skip, so that a value that is not kept costs nothing.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.count = 0
        self.total = 0
        self._size = size
        self._random = random.Random(seed)
        self._kept = array("q")
        self._next = -1
        self._weight = 1.0

    def extend(self, values: list[int]) -> None:
        """Offer values to the sample."""
        first, self.count, self.total = self.count, self.count + len(values), self.total + sum(values)
        room = self._size - len(self._kept)
        if room > 0:
            self._kept.extend(values[:room])
            if len(self._kept) == self._size:
                self._next = self._size - 1
                self._skip()
        while 0 <= self._next < self.count:
            self._kept[self._random.randrange(self._size)] = values[self._next - first]
            self._skip()

    def _skip(self) -> None:
        # random() may be 0, and 1 - random() cannot.
        self._weight *= math.exp(math.log(1 - self._random.random()) / self._size)
        self._next += 1 + int(math.log(1 - self._random.random()) / math.log1p(-self._weight))

    def sample(self) -> np.ndarray:
        """Return a copy of the sample: int64, (kept,)."""
        return np.array(self._kept, dtype=np.int64)

    def mean(self) -> float | None:
        """Return the exact mean of all values; None without any."""
        return self.total / self.count if self.count else None
