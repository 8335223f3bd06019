"""How long a loan lasts, and how much may be borrowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.policies.visibility import VisibilityPolicy, prefetch_limit


def test_a_loan_is_extended_at_half_and_lost_at_its_end() -> None:
    """At half of the loan there is as much time again for the extension to arrive."""
    policy = VisibilityPolicy(timeout_seconds=30)
    assert policy.extend_at(100) == 115
    assert not policy.is_lost(129.9, 100)
    assert policy.is_lost(130, 100)


@pytest.mark.parametrize(
    ("visibility", "throughput", "num_queues", "limit"),
    [(30, 28.0, 1, 840), (30, 28.0, 4, 210), (30, 0.1, 1, 3), (30, 0.01, 1, 1), (30, 0.0, 1, 1)],
)
def test_prefetch_is_what_can_be_finished(visibility: float, throughput: float, num_queues: int, limit: int) -> None:
    """Visibility timeout times throughput, shared between the queues, and at least one."""
    assert prefetch_limit(visibility, throughput, num_queues) == limit


def test_prefetch_keeps_the_workers_busy() -> None:
    """The limit is never under what the caller needs to keep working."""
    assert prefetch_limit(1, 1, at_least=16) == 16


def test_prefetch_is_unknown_at_first() -> None:
    """Without a throughput there is no limit to tell."""
    assert prefetch_limit(30, None) is None


@given(st.floats(0.1, 1000), st.floats(0.01, 10_000), st.integers(1, 10))
def test_what_is_prefetched_is_finished_in_time(visibility: float, throughput: float, num_queues: int) -> None:
    """Little's law: all queues' items, at the throughput, take no longer than the visibility timeout."""
    limit = prefetch_limit(visibility, throughput, num_queues)
    assert limit is not None
    assert limit == 1 or limit * num_queues / throughput <= visibility * (1 + 1e-9)
