"""Evidence that the mean of values is above a limit, valid whenever one looks, and kept in a few numbers.

How this works: a bettor bets on each value being above the limit. If the mean is not above it, the capital passes 1 / alpha
times its start with a probability of alpha at most, however often one looks (Ville). The best stake is not known, so the
capital is spread over several, a factor of two apart. See `noninferiority`, which tests both sides and needs all values.
"""

from __future__ import annotations

import math

import numpy as np

#: Stakes as shares of the largest that cannot lose everything at once.
_BETS = np.array([0.99, 0.5, 0.25, 0.125, 0.0625])


class Excess:
    """Not thread-safe.

    Args:
        limit: Of the mean, above 0 and below 1.

    Attributes:
        num: Values so far.
        total: Their sum.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.num = 0
        self.total = 0.0
        self._capital = np.zeros(len(_BETS))

    def add(self, value: float) -> None:
        """Note one value from 0 to 1, of an item that has nothing to do with the others."""
        self.num += 1
        self.total += value
        self._capital += np.log1p(_BETS / self.limit * (value - self.limit))

    @property
    def is_seen(self) -> bool:
        """Whether the mean so far is above the limit, surely or not."""
        return self.total > self.limit * self.num

    def is_sure(self, alpha: float) -> bool:
        """Return whether the mean is above the limit, with this probability of being wrong at most."""
        return self._compute_evidence() >= -math.log(alpha)

    def count_missing(self, alpha: float) -> int | None:
        """Return about how many more values like these would make it sure; None if it is, or nothing looks like it."""
        growth = float(self._capital.max()) / self.num if self.num else 0.0
        if not self.is_seen or self.is_sure(alpha) or growth <= 0:
            return None
        return math.ceil((-math.log(alpha) + math.log(len(_BETS))) / growth - self.num) or 1

    def _compute_evidence(self) -> float:
        """Return the logarithm of the capital."""
        most = float(self._capital.max())
        return most + math.log(float(np.exp(self._capital - most).mean()))
