"""How predictions are scored, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from headrace.ledger.track_record import judge_record
from headrace.runs.formats.prediction import TrackRecord
from headrace.runs.formats.profile import Estimate


def exact(mid: float) -> Estimate:
    """Return an estimate with a tenth on either side."""
    return Estimate(0.9 * mid, mid, 1.1 * mid)


def test_nothing_measured_says_so() -> None:
    """Without measurements there are no errors, not errors of 0."""
    record = judge_record([])
    assert record == TrackRecord(num=0)
    assert (record.mean_error, record.p90_error, record.max_error) == (None, None, None)
    assert "no prediction" in record.says


def test_errors_are_shares_of_what_was_measured() -> None:
    """Predicted 1.2 and measured 1.0 is 20 % off; 0.9 for 1.0 is 10 %; mean, 90 % and largest follow."""
    record = judge_record([(exact(1.2), 1.0), (exact(0.9), 1.0), (exact(2.0), 2.0)])
    assert record.num == 3
    assert record.mean_error == pytest.approx(0.1)
    assert record.p90_error == pytest.approx(0.2)
    assert record.max_error == pytest.approx(0.2)
    assert record.says == "last 3 predictions: mean error 10.0 %, largest 20.0 %"


def test_nine_in_ten_lie_within_p90() -> None:
    """Of errors of 1 % to 20 %, nine in ten are 18 % at most."""
    record = judge_record([(exact(1 + error / 100), 1.0) for error in range(20, 0, -1)])
    assert record.p90_error == pytest.approx(0.18)
    assert record.mean_error == pytest.approx(0.105)
    assert record.says == "last 20 predictions: mean error 10.5 %, 90 % within 18.0 %"


def test_signs_count_outside_of_five_percent_alone() -> None:
    """A measured 1.04 has no sign to get right; 1.2 predicted as 0.99 is wrong, and as exactly 1 too; 0.8 as 0.9 is right."""
    record = judge_record([(exact(0.9), 1.04), (exact(0.99), 1.2), (exact(1.0), 1.2), (exact(0.9), 0.8)])
    assert (record.num_with_sign, record.num_sign_right) == (3, 1)


def test_measurements_within_the_interval_are_counted() -> None:
    """Predicted 1.0 with 0.9 to 1.1: measured 0.9 and 1.05 are inside, 1.2 is not."""
    record = judge_record([(exact(1.0), 0.9), (exact(1.0), 1.05), (exact(1.0), 1.2)])
    assert record.num_inside == 2


def test_one_prediction_is_no_statistic() -> None:
    """A single one is told as such."""
    assert judge_record([(exact(1.05), 1.0)]).says == "the only prediction measured so far: error 5.0 %"
