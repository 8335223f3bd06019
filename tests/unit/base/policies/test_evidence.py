"""E-values of counts: their bounds, against exact sums and against another test of the same question."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headrace.base.policies.evidence import FEWER, MORE, Bet, Counts, bet_events, bet_split, bet_within
from headrace.validate.noninferiority import judge_drop

SHARE = 0.1


@pytest.mark.parametrize("bet", [bet_events(MORE), bet_events(FEWER)])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_events_that_fall_by_chance_win_nothing(bet: Bet, share: float) -> None:
    """The mean of the e-value over all ways in which 30 failures can fall is 1, whatever the share."""
    mean = sum(
        math.comb(30, num) * share**num * (1 - share) ** (30 - num)
        * math.exp(bet.log_e({share: Counts(bad_canary=num, bad_stable=30 - num)}))
        for num in range(31)
    )  # fmt: skip
    assert mean == pytest.approx(1.0)


def test_a_split_by_chance_wins_nothing() -> None:
    """The same of the jobs themselves."""
    mean = sum(
        math.comb(40, num) * SHARE**num * (1 - SHARE) ** (40 - num)
        * math.exp(bet_split().log_e({SHARE: Counts(canary=num, stable=40 - num)}))
        for num in range(41)
    )  # fmt: skip
    assert mean == pytest.approx(1.0)


@pytest.mark.parametrize(("stable", "canary"), [(0.0, 0.05), (0.2, 0.25), (0.9, 0.95)])
def test_a_canary_that_is_worse_by_the_margin_wins_nothing(stable: float, canary: float) -> None:
    """The mean of the e-value over all that four jobs can do is 1 at the margin: it is no evidence for "no worse"."""
    bet, mean = bet_within(0.05), 0.0
    chances = {
        "canary": SHARE * (1 - canary), "stable": (1 - SHARE) * (1 - stable),
        "bad_canary": SHARE * canary, "bad_stable": (1 - SHARE) * stable,
    }  # fmt: skip
    for jobs in itertools.product(chances, repeat=4):
        counts = Counts(
            canary=sum(job.endswith("canary") for job in jobs), stable=sum(job.endswith("stable") for job in jobs),
            bad_canary=jobs.count("bad_canary"), bad_stable=jobs.count("bad_stable"),
        )  # fmt: skip
        mean += math.prod(chances[job] for job in jobs) * math.exp(bet.log_e({SHARE: counts}))
    assert mean == pytest.approx(1.0)


def test_failures_in_the_canary_are_evidence() -> None:
    """Five times its share of 60 failures says that it is worse; its share says nothing, and less says that it is better."""
    bet = bet_events(MORE)
    assert bet.log_e({SHARE: Counts(bad_canary=30, bad_stable=30)}) > math.log(1e6)
    assert bet.log_e({SHARE: Counts(bad_canary=6, bad_stable=54)}) < 0
    assert bet_events(FEWER).log_e({SHARE: Counts(bad_canary=0, bad_stable=60)}) > math.log(20)


def test_evidence_goes_on_from_share_to_share() -> None:
    """What one share suggests and another confirms is more than either: nothing is lost at a step."""
    bet = bet_events(MORE)
    first, second = Counts(bad_canary=4, bad_stable=56), Counts(bad_canary=15, bad_stable=45)
    both = bet.log_e({0.01: first, 0.1: second})
    assert both > bet.log_e({0.1: second}) + 2 > bet.log_e({0.01: first}) + 2


def test_parts_of_an_event_win_less_than_whole_ones_in_their_place() -> None:
    """Ten halves in the canary say less than five whole ones in it and five nowhere: the bound holds for parts, too."""
    bet = bet_events(MORE)
    mean = np.mean(
        [
            math.exp(bet.log_e({0.5: Counts(bad_canary=0.5 * num, bad_stable=0.5 * (10 - num))}))
            for num in np.random.default_rng(0).binomial(10, 0.5, 4000)
        ]
    )
    assert mean < 1.0


def test_the_time_that_is_left_is_about_right() -> None:
    """After that time, if all goes on, the e-value is at its goal or a little above."""
    bet, goal = bet_within(0.005), math.log(50)
    counts = Counts(stable=9000, canary=1000, bad_stable=45, bad_canary=5)
    seconds = bet.seconds_to(goal, {SHARE: counts}, SHARE, 500.0)
    assert seconds is not None
    times = 1 + seconds / 500.0
    later = Counts(*(value * times for value in (9000, 1000, 45, 5)))
    assert goal <= bet.log_e({SHARE: later}) < goal + 1.0


def test_nobody_can_tell_when_a_worse_one_will_be_no_worse() -> None:
    """Nor before anything was counted at this share."""
    worse = Counts(stable=9000, canary=1000, bad_stable=9, bad_canary=50)
    assert bet_within(0.005).seconds_to(math.log(50), {SHARE: worse}, SHARE, 500.0) is None
    assert bet_within(0.005).seconds_to(math.log(50), {0.5: worse}, SHARE, 500.0) is None


@pytest.mark.parametrize(
    ("num", "changed", "outcome"), [(2000, 2, "passed"), (2000, 60, "rejected"), (100, 1, "inconclusive")]
)
def test_answers_are_judged_as_by_the_test_of_pairs(num: int, changed: int, outcome: str) -> None:
    """Of changed answers within 1 % both say the same: counts, and the sequence of `judge_drop`."""
    tally = {0.01: Counts(bad_canary=changed, bad_stable=num - changed)}
    more, fewer = bet_events(MORE).log_e(tally), bet_events(FEWER).log_e(tally)
    ours = "rejected" if more > math.log(20) else "passed" if fewer > math.log(20) else "inconclusive"
    values = np.zeros(num)
    values[np.linspace(0, num - 1, changed).astype(int)] = -1.0
    assert ours == outcome == judge_drop(values, 0.01).outcome
