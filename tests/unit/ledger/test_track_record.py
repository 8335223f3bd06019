"""How predictions are scored, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from headrace.ledger.track_record import Outcome, judge_record
from headrace.runs.formats.prediction import TrackRecord
from headrace.runs.formats.profile import Estimate


def exact(mid: float) -> Estimate:
    """Return an estimate with a tenth on either side."""
    return Estimate(0.9 * mid, mid, 1.1 * mid)


def judge(outcomes: Sequence[tuple[Estimate, float]], *kinds: str, widened: float = 1.0) -> TrackRecord:
    """Return the record of (predicted, measured)."""
    return judge_record([Outcome(predicted, measured, kinds, widened) for predicted, measured in outcomes])


def test_nothing_measured_says_so() -> None:
    """Without measurements there are no errors, not errors of 0."""
    record = judge_record([])
    assert record == TrackRecord(num=0)
    assert (record.mean_error, record.p90_error, record.max_error) == (None, None, None)
    assert "no prediction" in record.says


def test_errors_are_shares_of_what_was_measured() -> None:
    """Predicted 1.2 and measured 1.0 is 20 % off; 0.9 for 1.0 is 10 %; mean, 90 % and largest follow."""
    record = judge([(exact(1.2), 1.0), (exact(0.9), 1.0), (exact(2.0), 2.0)])
    assert record.num == 3
    assert record.mean_error == pytest.approx(0.1)
    assert record.p90_error == pytest.approx(0.2)
    assert record.max_error == pytest.approx(0.2)
    assert record.says == "last 3 predictions: mean error 10.0 %, largest 20.0 %"


def test_nine_in_ten_lie_within_p90() -> None:
    """Of errors of 1 % to 20 %, nine in ten are 18 % at most."""
    record = judge([(exact(1 + error / 100), 1.0) for error in range(20, 0, -1)])
    assert record.p90_error == pytest.approx(0.18)
    assert record.mean_error == pytest.approx(0.105)
    assert record.says == "last 20 predictions: mean error 10.5 %, 90 % within 18.0 %"


def test_signs_count_outside_of_five_percent_alone() -> None:
    """A measured 1.04 has no sign to get right; 1.2 predicted as 0.99 is wrong, and as exactly 1 too; 0.8 as 0.9 is right."""
    record = judge([(exact(0.9), 1.04), (exact(0.99), 1.2), (exact(1.0), 1.2), (exact(0.9), 0.8)])
    assert (record.num_with_sign, record.num_sign_right) == (3, 1)


def test_measurements_within_the_interval_are_counted() -> None:
    """Predicted 1.0 with 0.9 to 1.1: measured 0.9 and 1.05 are inside, 1.2 is not."""
    record = judge([(exact(1.0), 0.9), (exact(1.0), 1.05), (exact(1.0), 1.2)])
    assert record.num_inside == 2


def test_one_prediction_is_no_statistic() -> None:
    """A single one is told as such."""
    assert judge([(exact(1.05), 1.0)]).says == "the only prediction measured so far: error 5.0 %"


def within(width: float, off: float, *, mid: float = 1.0) -> tuple[Estimate, float]:
    """Return a prediction with `width` (a logarithm) on either side, and a measurement that is `off` by that much."""
    return Estimate(mid * math.exp(-width), mid, mid * math.exp(width)), mid * math.exp(off)


def test_without_a_record_the_rule_stands() -> None:
    """Predictions of another kind say nothing of this one."""
    record = judge([within(0.1, 0.5)] * 3, "workers")
    assert set(record.by_kind) == {"workers"}


def test_misses_widen_the_intervals_of_their_kind() -> None:
    """Three that were off by three times the half width: the next interval is about three times as wide."""
    record = judge([within(0.1, 0.3)] * 3, "workers")
    assert record.by_kind["workers"].num == 3
    assert record.by_kind["workers"].times == pytest.approx(3.0, rel=0.05)


def test_hits_narrow_them_slowly() -> None:
    """Three that were exact change little; forty make the interval half as wide, and never less than that by far."""
    few, many, more = (judge([within(0.1, 0.0)] * num, "batch").by_kind["batch"].times for num in (3, 40, 400))
    assert 0.7 < few < 1.0
    assert more <= many < 0.55
    assert more == pytest.approx(0.4)


def test_nine_in_ten_of_the_next_are_held() -> None:
    """Scores drawn from one distribution: the width of forty of them holds nine in ten of new ones, on an average."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        errors = 0.25 * rng.standard_normal(41)
        times = judge([within(0.1, float(off)) for off in errors[:40]], "workers").by_kind["workers"].times
        held += abs(errors[40]) <= 0.1 * times
    assert 0.85 <= held / 400 <= 0.95


def test_what_the_record_did_is_taken_out_again() -> None:
    """An interval that was made three times as wide and just held says the same as one by rule that missed by as much."""
    once = judge([within(0.1, 0.3)] * 5, "workers").by_kind["workers"].times
    again = judge([within(0.3, 0.3)] * 5, "workers", widened=3.0).by_kind["workers"].times
    assert again == pytest.approx(once)


def test_the_side_of_the_miss_counts() -> None:
    """An interval that reaches far down and little up is judged by the side on which the measurement lay."""
    lopsided = Estimate(math.exp(-1.0), 1.0, math.exp(0.1))
    below, above = (Outcome(lopsided, math.exp(off)).score for off in (-0.2, 0.2))
    assert below == pytest.approx(0.2)
    assert above == pytest.approx(2.0)


def test_a_single_miss_does_not_blow_up_an_interval_without_bound() -> None:
    """What was off by fifty half widths widens by eight times at most."""
    assert judge([within(0.02, 1.0)] * 20, "cores").by_kind["cores"].times == 8.0
