"""What an interval means for a margin and a budget."""

from __future__ import annotations

import math

import pytest

from headrace.compare.intervals import Interval
from headrace.compare.judging import Goal, judge


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ((0.03, 0.05, 0.07), "better"),
        ((0.001, 0.021, 0.05), "better"),
        ((-0.07, -0.05, -0.03), "worse"),
        ((-0.01, 0.0, 0.01), "no_difference"),
        ((0.005, 0.01, 0.015), "no_difference"),  # surely there, and surely too small to matter
        ((-0.01, 0.03, 0.07), "underpowered"),
        ((0.001, 0.015, 0.03), "underpowered"),  # surely there; whether it matters is open
        ((-0.05, 0.0, 0.05), "underpowered"),
    ],
)
def test_verdicts(gain: tuple[float, float, float], verdict: str) -> None:
    """Each place of the interval against 0 and a margin of 0.02 has its verdict."""
    assert judge(Interval(*gain), 20, Goal(0.02)).verdict == verdict


@pytest.mark.parametrize(
    ("gain", "met"),
    [
        ((-0.02, 0.0, 0.02), True),
        ((0.01, 0.05, 0.09), True),
        ((-0.09, -0.06, -0.04), False),
        ((-0.06, -0.04, -0.02), None),
    ],
)
def test_budget(gain: tuple[float, float, float], met: bool | None) -> None:
    """A budget of 3 % is met or broken when the whole interval lies on one side of it."""
    assert judge(Interval(*gain), 20, Goal(0.02, math.log(0.97))).budget_met is met


def test_drift_asks_for_a_larger_difference() -> None:
    """What is clear in pairs is not clear when the machine may have drifted by a tenth, and no number of pairs helps."""
    gain = Interval(0.05, 0.12, 0.19)
    assert judge(gain, 20, Goal(0.1)).verdict == "better"
    drifting = judge(gain, 20, Goal(0.1, drift=math.log(1.1)))
    assert (drifting.verdict, drifting.pairs_needed) == ("underpowered", None)
    assert judge(Interval(0.2, 0.25, 0.3), 20, Goal(0.1, drift=math.log(1.1))).verdict == "better"


def test_too_few_pairs() -> None:
    """Without an interval nothing is told but how many pairs are missing for one."""
    judged = judge(None, 4, Goal(0.02, -0.03))
    assert (judged.verdict, judged.budget_met, judged.pairs_needed) == ("underpowered", None, 2)


def test_pairs_needed_follow_the_square_root() -> None:
    """An interval of +-6 % about 3 % has to be half as wide, which takes four times the pairs: 3 x 20 more."""
    assert judge(Interval(-0.03, 0.03, 0.09), 20, Goal(0.02)).pairs_needed == 60


def test_pairs_needed_count_the_budget_too() -> None:
    """A loss surely there, of 4 % +-2 %, is 1 % from a budget of 3 %: the interval has to be half as wide."""
    judged = judge(Interval(-0.06, -0.04, -0.02), 20, Goal(0.02, -0.03))
    assert (judged.verdict, judged.pairs_needed) == ("worse", 60)


def test_nothing_is_needed_when_it_is_decided() -> None:
    """A sure answer names no more pairs."""
    goal = Goal(0.02, -0.03)
    judged = judge(Interval(0.03, 0.05, 0.07), 20, goal)
    assert judged.pairs_needed is None
    assert judged.is_sure(goal)


def test_right_at_the_edge_of_the_margin_the_number_stays_finite() -> None:
    """An estimate that equals the margin's edge would need endless pairs; a quarter of the margin is near enough."""
    judged = judge(Interval(-0.0001, 0.0199999, 0.04), 20, Goal(0.02))
    assert judged.pairs_needed is not None
    assert judged.pairs_needed <= 20 * 16
