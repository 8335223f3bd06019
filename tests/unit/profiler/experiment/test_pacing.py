"""How long stretches are, and what an experiment may cost."""

from __future__ import annotations

import pytest

from headrace.profiler.experiment.pacing import CREDIT_SECONDS, MOST_COST, Purse, choose_pace


def test_a_slow_pipeline_has_longer_stretches_within_limits() -> None:
    """A stretch holds enough items where four seconds do, and lasts no less than what threads need to take turns."""
    assert choose_pace(1000, 0.01).measured_seconds < choose_pace(30, 0.01).measured_seconds
    assert choose_pace(1.0, 1.0).measured_seconds == 4.0
    assert choose_pace(1e6, 0.0).measured_seconds == 0.6


def test_settling_takes_no_more_than_a_third() -> None:
    """However long items are inside, most of a stretch is measured."""
    pace = choose_pace(50, 100.0)
    assert pace.settling_seconds <= pace.measured_seconds / 2


def test_cost_is_the_share_that_was_lost() -> None:
    """One second at half the throughput in ten costs 5 %; a gain elsewhere is no excuse below nothing."""
    purse = Purse()
    purse.spend(9.0)
    purse.spend(1.0, 0.5)
    assert purse.cost == pytest.approx(0.05)
    purse.spend(1.0, 3.0)
    assert purse.cost == 0.0


def test_what_cannot_be_afforded_waits_and_debts_are_paid() -> None:
    """Beyond the credit a stretch waits until its cost is within the limit; in the end the credit is paid back, too."""
    purse = Purse(seconds=10.0, lost_seconds=1.0)
    assert purse.seconds_short(1.0, 0.5) == 0.0
    assert Purse(10.0, 2.0).seconds_short(1.0, 0.5) == pytest.approx(2.5 / MOST_COST - 11.0 - CREDIT_SECONDS)
    assert purse.seconds_owed == pytest.approx(1.0 / MOST_COST - 10.0)
    purse.spend(purse.seconds_owed)
    assert purse.cost == pytest.approx(MOST_COST)
