"""The share of wrong answers from weighted draws, and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.monitor.review.estimate import Stratum, estimate_errors


def _draw(random: np.random.Generator, strata: list[Stratum], num: int) -> list[int]:
    """Draw without replacement, with probabilities in proportion to preferences."""
    members = np.repeat(np.arange(len(strata)), [one.num_answers for one in strata])
    waits = random.exponential(size=len(members)) / np.array([strata[one].preference for one in members])
    return [int(one) for one in members[np.argsort(waits)[:num]]]


def test_without_a_draw_nothing_is_known() -> None:
    """The interval is everything."""
    found = estimate_errors([Stratum(10, 1.0)], [], [])
    assert (found.rate, found.low, found.high) == (None, 0.0, 1.0)


def test_a_whole_population_leaves_no_doubt() -> None:
    """When all were reviewed, the interval is the truth."""
    found = estimate_errors([Stratum(4, 1.0)], [0, 0, 0, 0], [True, False, False, False])
    assert found.rate == pytest.approx(0.25)
    assert found.low == pytest.approx(0.25, abs=1e-9)
    assert found.high == pytest.approx(0.25, abs=1e-9)


def test_no_error_among_a_hundred_bounds_the_share() -> None:
    """Clopper and Pearson's bound for one look is 3.6 %; for any number of looks it is somewhat more."""
    found = estimate_errors([Stratum(100_000, 1.0)], [0] * 100, [False] * 100)
    assert found.low == 0
    assert 0.036 < found.high < 0.06


def test_what_nobody_can_tell_widens_the_interval_alone() -> None:
    """An unsure verdict counts as wrong above and as right below, and not in the share."""
    strata, drawn = [Stratum(1000, 1.0)], [0] * 60
    sure = estimate_errors(strata, drawn, [True] * 6 + [False] * 54)
    unsure = estimate_errors(strata, drawn, [True] * 6 + [None] * 6 + [False] * 48)
    assert unsure.high > sure.high
    assert unsure.low == pytest.approx(sure.low)
    assert unsure.rate == pytest.approx(6 / 54)


def test_weights_undo_a_preference() -> None:
    """A stratum with all mistakes that is drawn ten times as often does not make the share ten times as large."""
    strata = [Stratum(9_000, 1.0), Stratum(1_000, 10.0)]
    rates = []
    for seed in range(60):
        drawn = _draw(np.random.default_rng(seed), strata, 200)
        rates.append(estimate_errors(strata, drawn, [one == 1 for one in drawn]).rate)
    assert np.mean(np.array(rates, float)) == pytest.approx(0.1, abs=0.01)


def test_the_interval_holds_whenever_one_looks() -> None:
    """Of 60 reviews, each looked at after 10, 20, ... items, at most a few ever lose the truth (95 % each)."""
    strata = [Stratum(2_000, 1.0), Stratum(500, 1.5), Stratum(30, 6.0)]
    held = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        left = [
            list(random.random(one.num_answers) < share) for one, share in zip(strata, (0.02, 0.1, 0.4), strict=True)
        ]
        truth = sum(map(sum, left)) / sum(one.num_answers for one in strata)
        drawn = _draw(random, strata, 80)
        wrong = [bool(left[one].pop()) for one in drawn]
        looks = [estimate_errors(strata, drawn[:num], wrong[:num]) for num in range(10, 81, 35)]
        held += all(one.low <= truth <= one.high for one in looks)
    assert held >= 54


def test_looking_longer_never_widens_without_news() -> None:
    """What was refused once stays refused: a later interval lies within the earlier one, whatever came."""
    strata = [Stratum(5_000, 1.0)]
    wrong = [one % 9 == 0 for one in range(90)]
    first = estimate_errors(strata, [0] * 40, wrong[:40])
    last = estimate_errors(strata, [0] * 90, wrong)
    assert first.low <= last.low + 1e-6
    assert last.high <= first.high + 1e-6


@pytest.mark.parametrize(("drawn", "wrong"), [([0], []), ([0, 0], [True, True])])
def test_draws_that_cannot_be_are_refused(drawn: list[int], wrong: list[bool]) -> None:
    """Verdicts for each draw, and no more draws than answers."""
    with pytest.raises(ValueError, match=r"verdicts|more items"):
        estimate_errors([Stratum(1, 1.0)], drawn, wrong)
