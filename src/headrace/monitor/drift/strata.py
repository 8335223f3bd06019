"""Sums of a statistic by window and stratum, as arrays; and what is too little to say anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.runs.formats.drift import DriftWindow

#: Of a stratum in fewer windows too little is known to judge it.
LEAST_STRATUM_WINDOWS = 10
#: A stratum with fewer values in a window says nothing there: a few are little, and are weighted so.
LEAST_VALUES = 1


@dataclass(frozen=True, slots=True)
class Table:
    """Values of one statistic by window and stratum; arrays (windows, strata)."""

    n: np.ndarray
    total: np.ndarray
    squares: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """NaN where there are too few values."""
        return np.where(self.n >= LEAST_VALUES, self.total / np.maximum(self.n, 1), np.nan)


def tabulate(windows: Sequence[DriftWindow], statistic: str, strata: Sequence[str]) -> Table:
    """Return the sums of a statistic."""
    found = np.zeros((3, len(windows), len(strata)))
    for row, window in enumerate(windows):
        for column, name in enumerate(strata):
            sums = window.strata[name].means.get(statistic) if name in window.strata else None
            if sums is not None:
                found[:, row, column] = sums.n, sums.total, sums.squares
    return Table(*found)


def say_missing_key(key: str, items: int, without_key: int, attributes: Collection[str]) -> str:
    """Return what is wrong where no job has the key, for it is probably misspelt; empty: some have it, or none is asked for.

    Args:
        key: The attribute that names strata.
        items: That were counted.
        without_key: Those whose job does not have it.
        attributes: That these jobs have.
    """
    if not key or not items or without_key < items:
        return ""
    has = ", ".join(sorted(attributes)) or "none"
    return f"no job has {key!r}, so all items are one stratum; attributes that jobs have: {has}"


def missing_key(windows: Sequence[DriftWindow]) -> str:
    """Return the same for windows that were recorded."""
    key = windows[-1].key if windows else ""
    attributes = {name for window in windows for name in window.attributes}
    return say_missing_key(
        key, sum(window.items for window in windows), sum(window.without_key for window in windows), attributes
    )
