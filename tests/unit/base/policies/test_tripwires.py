"""Failures in a row that roll a canary back at once."""

from __future__ import annotations

import random

from headrace.base.policies.tripwires import LEAST_ROW, FailureRow


def fail_in_a_row(share: float, stable_failing: float = 0.0) -> int:
    """Return how many failures of the canary in a row it takes where it fails always, and the other arm so often."""
    row, draw = FailureRow(), random.Random(1)
    for number in range(1, 200):
        for _ in range(round(1 / share) - 1):
            row.note_stable(failed=draw.random() < stable_failing)
        if row.note_canary(failed=True):
            return number
    return 0


def test_five_in_a_row_at_a_small_share() -> None:
    """While the others succeed, five are enough at 1 %; more are needed where the arms are as large."""
    assert fail_in_a_row(0.01) == LEAST_ROW == 5
    assert fail_in_a_row(0.1) == 6
    assert fail_in_a_row(0.5) == 13


def test_where_everything_fails_no_row_counts() -> None:
    """However long it is: the receiver is down, or a camera sends rubbish."""
    assert fail_in_a_row(0.1, stable_failing=1.0) == 0


def test_a_success_ends_the_row() -> None:
    """Every other job of the canary fails: that is for statistics."""
    row = FailureRow()
    for _ in range(1000):
        row.note_stable(failed=False, num=99)
        assert not row.note_canary(failed=True)
        assert not row.note_canary(failed=False)


def test_it_says_what_it_saw() -> None:
    """The row, and what became of others meanwhile."""
    row = FailureRow()
    row.note_stable(failed=False, num=500)
    said = [row.note_canary(failed=True) for _ in range(5)]
    assert said == ["", "", "", "", "5 jobs of the canary failed in a row, while 500 of 500 others succeeded"]


def test_outages_do_not_trip_it() -> None:
    """Half of all jobs fail, by chance, for ten thousand jobs of the canary: no row is its own fault."""
    row, draw = FailureRow(), random.Random(2)
    for _ in range(100_000):
        failed = draw.random() < 0.5
        if draw.random() < 0.1:
            assert not row.note_canary(failed=failed)
        else:
            row.note_stable(failed=failed)
