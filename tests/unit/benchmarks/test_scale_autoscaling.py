"""The simulation of autoscaling: what headrace's signal and manifest cost beside somebody who knows what comes."""

from __future__ import annotations

import pytest

from benchmarks.scale_autoscaling import DRAIN_SECONDS, RATE, Scaler, oracle_seconds, simulate, square_wave


def test_a_square_wave_is_within_the_goal() -> None:
    """Two waves: at most a tenth dearer than the oracle, nothing waits longer than the goal, and nothing is cut off."""
    found = simulate(square_wave, 7200, seed=0)
    assert 1 < found["worker_seconds"] / oracle_seconds(square_wave, 7200) < 1.10
    assert 0 < found["longest_wait_seconds"] < DRAIN_SECONDS
    assert found["cut_off"] == 0


def test_an_oracle_pays_for_what_comes() -> None:
    """A constant load costs its workers, and nothing is started."""
    assert oracle_seconds(lambda second: 8 * RATE, 100) == pytest.approx(10 * 100)
    assert oracle_seconds(lambda second: 8 * RATE, 100, 1.0) == pytest.approx(8 * 100)


def test_the_scaler_moves_as_it_is_allowed() -> None:
    """Up to twice as many or four more at once; nothing within a tenth; down by a quarter a minute."""
    scaler = Scaler()
    assert scaler.next(0, 100, 3) == 7
    assert scaler.next(15, 100, 20) == 40
    assert scaler.next(30, 42, 40) == 40
    scaler, present, seen = Scaler(), 40, []
    for step in range(6):
        present = scaler.next(15 * step, 10, present)
        seen.append(present)
    assert seen == [30, 30, 30, 30, 22, 22]
