"""When two results say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.tune.agreement import is_same, num_agreeing


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("cat", "cat", True),
        ("cat", "dog", False),
        (0.5, 0.50001, True),
        (0.5, 0.51, False),
        (float("nan"), float("nan"), True),
        (1, 2, False),
        (1.0, "1", False),
        (None, 0.0, False),
        ({"label": 3, "score": 0.25}, {"label": 3, "score": 0.250001}, True),
        ({"label": 3}, {"label": 3, "score": 0.2}, False),
        ([1.0, 2.0], [1.0, 2.0, 3.0], False),
        ((1, "a"), (1, "a"), True),
        (np.zeros(3, np.float32), np.full(3, 1e-7, np.float32), True),
        (np.zeros(3, np.float32), np.zeros(4, np.float32), False),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array([1.0]), np.array(["a"]), False),
        (np.float32(0.1), 0.1, True),
    ],
)
def test_what_is_the_same(a: Any, b: Any, same: bool) -> None:
    """Structure must be alike; numbers may differ by what the order of additions changes."""
    assert is_same(a, b) is same
    assert is_same(b, a) is same


def test_a_missing_job_does_not_agree() -> None:
    """A job that one Plan failed on counts among those looked at, and not among those that agree."""
    assert num_agreeing({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": 3}) == (1, 4)
