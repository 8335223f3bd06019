"""The what-if benchmark: what it comes to, and whether that is enough."""

from __future__ import annotations

import pytest

from benchmarks.whatif_error import MOST_ROUNDS, errors, missed, until_sure
from headrace.testing.faults.measuring import Cost


def test_errors_are_of_ratios_and_signs_of_those_that_matter() -> None:
    """10 % too high and 50 % too low; of the two that changed by more than 5 %, one went the other way."""
    found = errors([(1.1, 1.0), (0.6, 1.2), (2.0, 2.0), (None, 3.0)])
    assert (found["n"], found["max"], found["p90"]) == (3, pytest.approx(0.5), pytest.approx(0.5))
    assert found["mean"] == pytest.approx(0.2)
    assert (found["sign_right"], found["n_signed"]) == (0.5, 2)


def test_a_goal_that_is_missed_is_said() -> None:
    """Each of them alone; nothing measured misses what it takes to tell."""
    good = {"n": 60, "mean": 0.05, "p90": 0.10, "max": 0.15, "sign_right": 0.95}
    assert missed(good) == []
    for key, bad in {"n": 59, "mean": 0.051, "p90": 0.101, "max": 0.16, "sign_right": 0.94}.items():
        assert len(missed(good | {key: bad})) == 1
    assert missed({"n": 0, "mean": None, "p90": None, "max": None, "sign_right": None})


@pytest.mark.parametrize(("noise", "rounds"), [(0.01, 1), (0.3, MOST_ROUNDS)])
def test_pairs_that_disagree_are_run_again(noise: float, rounds: int) -> None:
    """Up to a limit; all pairs are kept."""
    pairs = Cost(ratio=1.0, interval=None, before=(100.0, 100.0), after=(100.0, 100.0 * (1 + noise)))
    before, after = until_sure(lambda: pairs)
    assert (before, after) == (pairs.before * rounds, pairs.after * rounds)
