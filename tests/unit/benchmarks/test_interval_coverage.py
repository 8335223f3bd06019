"""Intervals of today around predictions that were frozen and measured on two machines."""

from __future__ import annotations

from benchmarks.interval_coverage import GOAL, LEDGERS, as_text, measure_all


def test_nine_in_ten_measured_ratios_lie_within() -> None:
    """With the record of the other machine, which no prediction is part of; and the table names both ledgers."""
    result = measure_all()
    low, high = GOAL
    for name in LEDGERS:
        found = result["ledgers"][name]
        assert found["rule"]["n"] == 88
        assert low <= found["record"]["held"] <= high
        assert found["record"]["width"] < 0.12
        assert name in as_text(result)
