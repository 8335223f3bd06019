"""When a result that could not be delivered is tried again, and when it is given up; and Retry-After in quick retries."""

from __future__ import annotations

import pytest

from headrace.base.policies.retry import PostponePolicy, RetryPolicy

POLICY = PostponePolicy(give_up_seconds=600.0, base_seconds=2.0, max_seconds=60.0)


@pytest.mark.parametrize(("tries", "most"), [(0, 2.0), (1, 4.0), (4, 32.0), (5, 60.0), (5000, 60.0)])
def test_pauses_double_up_to_the_longest(tries: int, most: float) -> None:
    """The pause is uniform between nothing and twice that of the time before."""
    assert POLICY.next_delay(100.0, 50.0, tries, 0.0) == 0.0
    assert POLICY.next_delay(100.0, 50.0, tries, 0.5) == most / 2


def test_time_ends_it_not_tries() -> None:
    """However often it was tried, it is held back until the time is over, and given up then."""
    assert POLICY.next_delay(1599.9, 1000.0, 10**6, 0.5) is not None
    assert POLICY.next_delay(1600.0, 1000.0, 0, 0.5) is None


def test_the_first_failure_is_never_final() -> None:
    """With nothing known of an earlier one it begins now; so it does if the clock went back since."""
    assert POLICY.next_delay(1e9, None, 0, 0.0) == 0.0
    assert POLICY.next_delay(1000.0, 4600.0, 3, 0.0) == 0.0


def test_a_destination_that_is_left_alone_is_left_alone() -> None:
    """What the destination asks for is waited for, but several tries are left before it is given up."""
    assert POLICY.next_delay(100.0, 50.0, 0, 0.5, at_least_seconds=30.0) == 31.0
    assert POLICY.next_delay(100.0, 50.0, 0, 0.0, at_least_seconds=1e6) == 200.0


def test_retry_after_counts_against_the_budget() -> None:
    """A quick retry waits as long as the server asks, and is none if that is longer than the budget."""
    policy = RetryPolicy(max_attempts=3, base_seconds=1.0, budget_seconds=10.0)
    assert policy.next_delay(1, 2.0, 0.5, at_least_seconds=4.0) == 4.5
    assert policy.next_delay(1, 2.0, 0.5, at_least_seconds=8.0) is None
