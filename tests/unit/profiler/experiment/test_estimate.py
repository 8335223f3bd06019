"""Paired ratios, sensitivities, and when they are decided."""

from __future__ import annotations

import math

import pytest

from headrace.profiler.experiment.estimate import Scatter, interval_of, is_decided, scatter_of, sensitivity_of
from headrace.runs.formats.experiment import Interval

NOTHING = Scatter(0.0, 0)


def exactly(ratio: float) -> Interval:
    """Return a ratio that is known exactly."""
    return Interval(low=ratio, mid=ratio, high=ratio)


def test_two_pairs_are_too_few() -> None:
    """There is no interval before the third pair."""
    assert interval_of([0.1, 0.1], NOTHING) is None
    assert interval_of([0.1, 0.1, 0.1], NOTHING) is not None


def test_the_interval_is_students() -> None:
    """With 5 pairs the half width is t(4, 0.99) standard errors: 3.747, by the tables."""
    values = [0.0, 0.1, 0.2, 0.3, 0.4]
    found = interval_of(values, NOTHING)
    assert found is not None
    error = math.sqrt(0.025) / math.sqrt(5)
    assert math.log(found.high) - 0.2 == pytest.approx(3.747 * error, rel=0.01)
    assert math.log(found.mid) == pytest.approx(0.2)


def test_scatter_is_pooled_over_perturbations() -> None:
    """Each group scatters around its own mean; groups of one tell nothing."""
    found = scatter_of([[0.0, 0.2], [1.0, 1.2], [5.0]])
    assert found.freedom == 2
    assert found.deviation == pytest.approx(math.sqrt(0.02))


@pytest.mark.parametrize("amount", [0.5, 0.25, -1 / 3])
def test_the_limit_has_sensitivity_one_and_room_has_none(amount: float) -> None:
    """An item that takes the share more of the limit takes as much longer; without a limit nothing changes."""
    assert sensitivity_of(exactly(1 / (1 + amount)), amount).mid == pytest.approx(1)
    assert sensitivity_of(exactly(1.0), amount).mid == pytest.approx(0)


def test_ends_of_a_sensitivity_are_in_order_for_more_of_a_resource_too() -> None:
    """Where there is more of a resource a larger throughput is a larger sensitivity."""
    found = sensitivity_of(Interval(low=1.1, mid=1.3, high=1.5), -1 / 3)
    assert found.low < found.mid < found.high


def test_decided_means_on_one_side() -> None:
    """A sensitivity across the half is open; a ratio is decided if it is a change, or surely none."""
    assert not is_decided(Interval(low=0.7, mid=0.8, high=0.95), 0.5)
    assert is_decided(Interval(low=0.6, mid=0.66, high=0.72), 0.5)
    assert is_decided(Interval(low=0.98, mid=1.0, high=1.02), None)
    assert is_decided(Interval(low=1.2, mid=1.5, high=1.9), None)
    assert not is_decided(Interval(low=0.9, mid=1.0, high=1.1), None)
