"""Whether and when a failed try is repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.policies.retry import RetryPolicy

JITTER = st.floats(0, 1, exclude_max=True)


@given(attempt=st.integers(1, 10_000), jitter=JITTER, base=st.floats(0.001, 10), most=st.floats(0.001, 100))
def test_full_jitter_bounds(attempt: int, jitter: float, base: float, most: float) -> None:
    """A pause lies between 0 and the smaller of the limit and base * 2^(attempt - 1), in proportion to the jitter."""
    policy = RetryPolicy(max_attempts=10**9, base_seconds=base, max_seconds=most, budget_seconds=1e9)
    delay = policy.next_delay(attempt, 0.0, jitter)
    assert delay == pytest.approx(jitter * min(most, base * 2.0 ** min(attempt - 1, 1000)))
    assert 0 <= delay <= most


def test_the_first_pause_is_within_the_base() -> None:
    """Three pauses at the most that jitter gives: the base, doubled each time, up to the limit."""
    policy = RetryPolicy(max_attempts=9, base_seconds=1, max_seconds=3)
    assert [policy.next_delay(attempt, 0, 0.5) for attempt in (1, 2, 3, 4)] == [0.5, 1.0, 1.5, 1.5]


def test_attempts_are_counted() -> None:
    """After the last try allowed there is no other."""
    policy = RetryPolicy(max_attempts=3)
    assert policy.next_delay(2, 0.0, 0.5) is not None
    assert policy.next_delay(3, 0.0, 0.5) is None


def test_one_attempt_means_no_retry() -> None:
    """max_attempts = 1 never tries again."""
    assert RetryPolicy(max_attempts=1).next_delay(1, 0.0, 0.0) is None


@given(attempt=st.integers(1, 2000), elapsed=st.floats(0, 100), jitter=JITTER)
def test_no_try_begins_after_the_budget(attempt: int, elapsed: float, jitter: float) -> None:
    """Time so far and pause together stay within the budget, or there is no further try."""
    policy = RetryPolicy(max_attempts=10**6, budget_seconds=30)
    delay = policy.next_delay(attempt, elapsed, jitter)
    assert delay is None or elapsed + delay <= 30
    if elapsed > 30:
        assert delay is None
