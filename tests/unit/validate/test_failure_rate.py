"""What failures of calls prove."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.validate.failure_rate import FEWEST_FAILURES, MOST_FAILING, judge_failures


@pytest.mark.parametrize(
    ("num_failed", "num_calls", "expected"),
    [
        (0, 1, "less"), (1, 1, "not known"), (2, 2, "not known"), (3, 3, "more"), (1, 1_000, "not known"),
        (3, 100, "more"), (3, 1_000, "not known"), (3, 100_000, "less"), (100, 100, "more"), (100, 10**7, "less"),
    ],
)  # fmt: skip
def test_what_counts_is_how_many_of_how_many(num_failed: int, num_calls: int, expected: str) -> None:
    """Three of three are enough, three of a hundred thousand are none, and what is between is not known."""
    assert judge_failures(num_failed, num_calls) == expected


@pytest.mark.parametrize(
    ("share", "wrong"), [(MOST_FAILING, "more"), (0.9 * MOST_FAILING, "more"), (MOST_FAILING, "less")]
)
def test_looking_after_every_failure_is_wrong_one_time_in_twenty_at_most(share: float, wrong: str) -> None:
    """What fails as often as is allowed is found to fail more, or less, at any of all looks in at most 5 % of the runs."""
    random, num_wrong, num_runs = np.random.default_rng(0), 0, 400
    for _ in range(num_runs):
        failed_at = np.flatnonzero(random.random(20_000) < share) + 1
        # Of a share that is too large the capital is largest right after a failure, of one that is too small right before.
        looks = failed_at if wrong == "more" else [*(failed_at[1:] - 1), 20_000]
        num_wrong += any(judge_failures(number, int(at)) == wrong for number, at in enumerate(looks, 1))
    assert num_wrong <= 0.05 * num_runs


def test_a_candidate_that_fails_now_and_then_is_found() -> None:
    """One call in a hundred: with some ten failures."""
    random = np.random.default_rng(1)
    failed_at = np.flatnonzero(random.random(5_000) < 0.01) + 1
    needed = next(number for number, at in enumerate(failed_at, 1) if judge_failures(number, int(at)) == "more")
    assert FEWEST_FAILURES <= needed <= 10
