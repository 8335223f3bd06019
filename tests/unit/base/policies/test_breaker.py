"""The circuit breaker and the retry budget, moment by moment."""

from __future__ import annotations

import pytest

from headrace.base.policies.breaker import Breaker, BreakerPolicy, BreakerState, RetryBudget

POLICY = BreakerPolicy(failures=3, open_seconds=5.0, max_open_seconds=20.0, probe_seconds=60.0)


def opened(at: float = 0.0) -> Breaker:
    """A breaker that opened at a moment."""
    breaker = Breaker(POLICY)
    for _ in range(POLICY.failures):
        breaker.note_failure(at)
    return breaker


def test_closed_lets_everything_through() -> None:
    """Fewer failures in a row than the policy's leave it closed; a success in between starts the count again."""
    breaker = Breaker(POLICY)
    for _ in range(5):
        breaker.note_failure(0.0)
        breaker.note_failure(0.0)
        breaker.note_success()
    assert breaker.state(0.0) is BreakerState.CLOSED
    assert breaker.admit(0.0) is None
    assert breaker.num_opened == 0


def test_open_lets_nothing_through() -> None:
    """After so many failures in a row nobody calls, and each is told for how long."""
    breaker = opened(at=100.0)
    assert breaker.num_opened == 1
    assert breaker.state(104.9) is BreakerState.OPEN
    assert breaker.admit(101.0) == 4.0
    assert breaker.seconds_open(101.0) == 4.0


def test_half_open_lets_one_probe_through() -> None:
    """When its time is over, one caller probes and the others wait for what becomes of it."""
    breaker = opened()
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    assert breaker.admit(5.0) is None
    assert [breaker.admit(5.0), breaker.admit(9.0)] == [5.0, 5.0]


def test_a_probe_that_succeeds_closes() -> None:
    """The next failure is then the first again."""
    breaker = opened()
    assert breaker.admit(5.0) is None
    breaker.note_success()
    breaker.note_failure(6.0)
    breaker.note_failure(6.0)
    assert breaker.state(6.0) is BreakerState.CLOSED


def test_probes_that_fail_double_the_time() -> None:
    """Up to the policy's longest; it counts as one opening until it closed."""
    breaker, now, waits = opened(), 0.0, []
    for _ in range(5):
        wait = breaker.seconds_open(now)
        waits.append(wait)
        now += wait
        assert breaker.admit(now) is None
        breaker.note_failure(now)
    assert waits == [5.0, 10.0, 20.0, 20.0, 20.0]
    assert breaker.num_opened == 1


def test_a_probe_without_an_end_is_given_up() -> None:
    """A prober that never tells does not keep the destination shut for ever; one that withdraws lets the next at once."""
    breaker = opened()
    assert breaker.admit(5.0) is None
    assert breaker.admit(64.9) is not None
    assert breaker.admit(65.0) is None
    breaker.withdraw()
    assert breaker.admit(65.0) is None


def test_failures_of_earlier_calls_do_not_prolong() -> None:
    """Calls that were under way when it opened fail later; they tell nothing new."""
    breaker = opened()
    breaker.note_failure(4.0)
    assert breaker.seconds_open(4.0) == 1.0
    assert breaker.num_opened == 1


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_retries_are_a_part_of_the_calls(ratio: float) -> None:
    """When everything fails, retries come to the reserve and that part of all calls, themselves included."""
    budget = RetryBudget(ratio, reserve=10.0)
    retries = calls = 0
    for _ in range(10_000):
        calls += 1
        budget.deposit()
        while budget.withdraw():
            retries += 1
            calls += 1
            budget.deposit()
    assert retries == pytest.approx(ratio * calls + 10, abs=2)


def test_a_quiet_destination_saves_no_tokens() -> None:
    """However many calls went well before, no more retries than the reserve follow one another."""
    budget = RetryBudget(0.1, reserve=3.0)
    for _ in range(1000):
        budget.deposit()
    assert [budget.withdraw() for _ in range(5)] == [True, True, True, False, False]
