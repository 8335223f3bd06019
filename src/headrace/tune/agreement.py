"""How many results of two Plans agree: what a faster Plan must not change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

#: Numbers count as the same within this: batches of other sizes add in another order. A thousandth is far more than that does,
#: and far less than would change an answer.
RELATIVE, ABSOLUTE = 1e-3, 1e-5


def num_agreeing(results: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many jobs have the same result in both, and how many were looked at.

    Args:
        results: {job: result} of one Plan.
        others: The same of another; a job that one of them lacks does not agree.
    """
    jobs = results.keys() | others.keys()
    missing = object()
    agreeing = sum(is_same(results.get(job, missing), others.get(job, missing)) for job in jobs)
    return agreeing, len(jobs)


def is_same(a: Any, b: Any) -> bool:
    """Return whether two results say the same: alike in structure, numbers within a thousandth."""
    if isinstance(a, np.ndarray | np.generic) or isinstance(b, np.ndarray | np.generic):
        return _same_arrays(np.asarray(a), np.asarray(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(is_same(one, other) for one, other in zip(a, b, strict=True))
    if isinstance(a, float) or isinstance(b, float):
        return _same_numbers(a, b)
    return bool(a == b)


def _same_numbers(a: Any, b: Any) -> bool:
    try:
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (math.isnan(a) and math.isnan(b))
    except TypeError:
        return False


def _same_arrays(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "fc" or b.dtype.kind in "fc":
        try:
            return bool(np.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True))
        except TypeError:
            return False
    return bool(np.array_equal(a, b))
