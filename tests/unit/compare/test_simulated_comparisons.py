"""The whole of the statistics on simulated blocks: how often it is wrong, how often it finds what is there."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from headrace.compare.comparison import Question, answer
from headrace.compare.contenders import Blocks
from headrace.compare.judging import Judgement
from headrace.compare.sequential import doubling
from headrace.compare.turns import runs_backwards

MakePairs = Callable[[np.random.Generator, int, float], list[tuple[float, float]]]

QUESTION = Question()
PAIRS = Blocks().pairs


def _judge(pairs: list[tuple[float, float]], alpha: float = 0.05) -> Judgement:
    return answer(pairs, QUESTION, alpha)[1]


def test_at_most_16_false_alarms_in_200(make_pairs: MakePairs) -> None:
    """Where A and B are the same, better or worse is said at most 16 times in 200, whatever the noise."""
    random = np.random.default_rng(11)
    verdicts = [_judge(make_pairs(random, PAIRS, 1.0)).verdict for _ in range(200)]
    assert sum(verdict in ("better", "worse") for verdict in verdicts) <= 16


def test_five_percent_is_found_90_times_in_100(make_pairs: MakePairs) -> None:
    """A true gain of 5 % is called better at least 90 times in 100, and a true loss worse."""
    random = np.random.default_rng(12)
    gains = [_judge(make_pairs(random, PAIRS, 1.05)).verdict for _ in range(100)]
    losses = [_judge(make_pairs(random, PAIRS, 1 / 1.05)).verdict for _ in range(100)]
    assert gains.count("better") >= 90
    assert losses.count("worse") >= 90


def test_intervals_hold_the_truth(make_pairs: MakePairs) -> None:
    """Of 200 intervals at 95 %, at most 18 miss a true change of 5 % (more than that has a chance below 1 in 100)."""
    random = np.random.default_rng(13)
    missed = 0
    for _ in range(200):
        interval, _ = answer(make_pairs(random, 12, 1.05), QUESTION)
        assert interval is not None
        missed += not interval.low <= math.log(1.05) <= interval.high
    assert missed <= 18


def _until_sure(pairs: list[tuple[float, float]]) -> str:
    goal = QUESTION.goal(QUESTION.used_margin)
    for num_pairs, alpha in doubling(10, len(pairs)):
        judged = _judge(pairs[:num_pairs], alpha)
        if judged.is_sure(goal):
            break
    return judged.verdict


def test_looking_often_raises_no_more_alarms(make_pairs: MakePairs) -> None:
    """Adding pairs until it is sure, with five looks, raises at most 16 false alarms in 200."""
    random = np.random.default_rng(14)
    verdicts = [_until_sure(make_pairs(random, 160, 1.0)) for _ in range(200)]
    assert sum(verdict in ("better", "worse") for verdict in verdicts) <= 16
    assert verdicts.count("no_difference") >= 100


def test_the_pairs_that_it_asks_for_decide(make_pairs: MakePairs) -> None:
    """Of comparisons that cannot tell, at least half can with the number of pairs that they ask for."""
    random = np.random.default_rng(15)
    decided = []
    for ratio in (1.0, 1.03, 1.05) * 20:
        pairs = make_pairs(random, 400, ratio)
        needed = _judge(pairs[:8]).pairs_needed
        if needed is not None and needed + 8 <= len(pairs):
            decided.append(_judge(pairs[: needed + 8]).verdict != "underpowered")
    assert len(decided) >= 10
    assert sum(decided) >= len(decided) / 2


def test_a_budget_is_neither_broken_nor_kept_by_chance(make_pairs: MakePairs) -> None:
    """With a loss right at the budget, at most a tenth of 200 comparisons claim to know on which side it is."""
    random = np.random.default_rng(16)
    question = Question(budget=0.03)
    known = [answer(make_pairs(random, PAIRS, 0.97), question)[1].budget_met is not None for _ in range(200)]
    assert sum(known) <= 20


def test_the_order_gives_a_drift_to_both_alike() -> None:
    """Over 8 pairs the places of A and of B have equal sums and equal sums of squares: no drift or bend favours one."""
    order = "".join("BA" if runs_backwards(number) else "AB" for number in range(8))
    assert order == "ABBABAABBAABABBA"
    for power in (1, 2, 3):
        sums = [sum(place**power for place, side in enumerate(order) if side == name) for name in "AB"]
        assert sums[0] == sums[1]
