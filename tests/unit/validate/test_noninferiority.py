"""The sequential test of a drop, against what it promises."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.runs.formats.outcomes import Decided
from headrace.validate.noninferiority import items_planned, judge_drop, largest_discordance


def draw(seed: int, count: int, drop: float, discordance: float) -> np.ndarray:
    """Return differences in {-1, 0, 1} with this mean drop, of which this share is not 0."""
    worse, better = (discordance + drop) / 2, (discordance - drop) / 2
    return np.random.default_rng(seed).choice([-1.0, 1.0, 0.0], count, p=[worse, better, 1 - discordance])


@pytest.mark.full
@pytest.mark.parametrize("is_all", [False, True])
def test_a_drop_at_the_margin_is_rarely_accepted_and_rarely_rejected(is_all: bool) -> None:
    """200 runs of 20,000 items that sit on the margin, looked at after every item: each error 5 % at most."""
    found = [judge_drop(draw(seed, 20_000, 0.01, 0.03), 0.01, is_all=is_all).outcome for seed in range(200)]
    assert found.count("passed") <= 10 + 6  # 5 %, and two standard deviations of the count
    assert found.count("rejected") <= 10 + 6
    assert found.count("inconclusive") >= 170


@pytest.mark.full
@pytest.mark.parametrize(("discordance", "alpha"), [(0.005, 0.05), (0.06, 0.05), (0.06, 0.001)])
def test_stakes_for_a_known_number_err_no_oftener(discordance: float, alpha: float) -> None:
    """Rare differences and many, and one of many questions: by Ville's bound the share of errors is alpha at most."""
    found = [judge_drop(draw(seed, 4000, 0.005, discordance), 0.005, alpha, is_all=True) for seed in range(300)]
    wrong = sum(one.outcome == "passed" for one in found)
    assert wrong <= 300 * alpha + 2 * (300 * alpha) ** 0.5


@pytest.mark.full
@pytest.mark.parametrize("discordance", [0.001, 0.004, 0.015, 0.06])
def test_a_known_number_of_items_tells_more(discordance: float) -> None:
    """Of equals it accepts more than where nobody knows how many items will come."""
    count = max(700, int(14 * discordance / 0.01**2))
    drawn = [draw(seed, count, 0.0, discordance) for seed in range(120)]
    known, unknown = (
        sum(judge_drop(one, 0.01, 0.01, is_all=is_all).outcome == "passed" for one in drawn) for is_all in (True, False)
    )
    assert known > unknown


@pytest.mark.parametrize(
    ("drop", "discordance", "outcome", "most_items"),
    [
        (0.36, 0.37, "rejected", 40),
        (0.09, 0.11, "rejected", 260),
        (0.04, 0.06, "rejected", 1000),
        (0.02, 0.04, "rejected", 5500),
        (0.0, 0.02, "passed", 3400),
        (-0.02, 0.04, "passed", 1000),
    ],
)
def test_the_larger_the_difference_the_sooner(
    drop: float, discordance: float, outcome: Decided, most_items: int
) -> None:
    """Nine of ten are decided, and rightly, within these items."""
    found = [judge_drop(draw(seed, most_items, drop, discordance), 0.01).outcome for seed in range(60)]
    assert found.count(outcome) >= 51
    assert not set(found) - {outcome, "inconclusive"}


def test_what_never_differs_is_accepted_when_enough_was_seen() -> None:
    """Without any difference it takes some 460 items for a point: fewer show nothing."""
    assert judge_drop(np.zeros(300), 0.01).outcome == "inconclusive"
    finding = judge_drop(np.zeros(1000), 0.01)
    assert finding.outcome == "passed"
    assert finding.decided_after == pytest.approx(460, abs=15)


def test_an_open_finding_says_about_how_many_more() -> None:
    """With as many again as it asks for, it is decided; one that sits on the margin never is."""
    first = judge_drop(np.zeros(100), 0.01)
    assert first.more_items is not None
    assert judge_drop(np.zeros(100 + first.more_items), 0.01).outcome == "passed"
    assert judge_drop([], 0.01).more_items is None


@pytest.mark.parametrize(("discordance", "margin", "count"), [(0.0, 0.01, 300), (0.02, 0.005, 3000), (0.06, 0.01, 500)])
def test_of_a_known_number_fewer_more_are_asked_for(discordance: float, margin: float, count: int) -> None:
    """Stakes for so many items need fewer: with what is asked for most sets like these are decided."""

    def like(num_items: int, seed: int) -> np.ndarray:
        apart = round(num_items * discordance / 2)
        values = np.concatenate([np.ones(apart), -np.ones(apart), np.zeros(num_items - 2 * apart)])
        return np.random.default_rng(seed).permutation(values)

    known, unknown = (judge_drop(like(count, 0), margin, is_all=is_all).more_items for is_all in (True, False))
    assert known is not None
    assert unknown is not None
    assert known < 0.9 * unknown
    larger = [judge_drop(like(count + known, seed), margin, is_all=True).outcome for seed in range(20)]
    assert larger.count("passed") > 10


@pytest.mark.parametrize("is_all", [False, True])
def test_the_interval_holds_the_true_drop(is_all: bool) -> None:
    """In 95 of 100 at least, and it is an interval around what was seen."""
    findings = [judge_drop(draw(seed, 2000, 0.03, 0.05), 0.01, is_all=is_all) for seed in range(100)]
    assert sum(one.low <= 0.03 <= one.high for one in findings) >= 95
    assert all(one.low <= one.drop <= one.high for one in findings)
    assert (judge_drop([], 0.01).low, judge_drop([], 0.01).high) == (-1.0, 1.0)


def test_scores_between_right_and_wrong_count_too() -> None:
    """A metric such as IoU gives differences of any size: half a point worse on every item is within one point."""
    assert judge_drop(np.full(2000, -0.005), 0.01).outcome == "passed"
    assert judge_drop(np.full(2000, -0.02), 0.01).outcome == "rejected"


@pytest.mark.parametrize("margin", [0.0, 1.0, -0.01, float("nan")])
def test_an_impossible_margin_is_refused(margin: float) -> None:
    """None, all, and none at all."""
    with pytest.raises(SettingsError, match="margin"):
        judge_drop([0.0], margin)


@pytest.mark.parametrize("bad", [1.5, float("nan")])
def test_scores_beyond_one_are_refused(bad: float) -> None:
    """The bound on losses rests on them."""
    with pytest.raises(ValueError, match="from 0 to 1"):
        judge_drop([0.0, bad], 0.01)


def test_the_plan_is_that_of_the_tables() -> None:
    """6.18 d / m^2 items (Wellek 2010); 897 of them can show a point only where 1.45 % differ at most."""
    assert items_planned(0.01, 0.02) == 1236
    assert items_planned(0.005, 0.02) == 4 * 1236
    assert items_planned(0.01, 0.0) == 300
    assert largest_discordance(0.01, 897) == pytest.approx(0.0145, abs=0.0001)
