"""Evidence where keys are drawn instead of jobs."""

from __future__ import annotations

from headrace.base.policies.evidence import Counts
from headrace.base.policies.keyed_outcomes import KeyedOutcomes


def test_an_epoch_of_a_key_is_one_event() -> None:
    """A camera whose hundred jobs all fail counts once, in its arm, when the epoch is over."""
    outcomes = KeyedOutcomes()
    for _ in range(100):
        assert outcomes.note("a", 1, canary=True, failed=1, num=1) is None
    assert outcomes.note("b", 1, canary=False, failed=0, num=5) is None
    assert outcomes.note("a", 2, canary=False, failed=0, num=1) == Counts(stable=1, canary=1, bad_canary=1.0)


def test_few_failures_count_in_part() -> None:
    """Measured by what failing keys had in epochs before: 10 of them on average, so that 2 are a fifth of an event."""
    outcomes = KeyedOutcomes()
    outcomes.note("a", 1, canary=True, failed=10, num=20)
    outcomes.note("a", 2, canary=True, failed=2, num=20)
    assert outcomes.note("a", 3, canary=True, failed=0, num=1) == Counts(canary=1, bad_canary=0.2)
