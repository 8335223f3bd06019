"""What a diagnosis leaves out when the time it may simulate for is used up: noted, the most important done first."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from headrace.diagnose.budget import Budget
from headrace.diagnose.candidates import find_candidates
from headrace.diagnose.replay import Replay
from headrace.diagnose.verdict.proposal import Advice
from headrace.diagnose.verdict.remedies import remedies

STEPS = [
    {"name": "fetch", "wait": 0.02, "kind": "io", "workers": 2},
    {"name": "decode", "cpu": 0.004},
    {"name": "deliver", "cpu": 1e-3, "kind": "io"},
]


class Steps:
    """A clock that moves on by a second each time it is read."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def __call__(self) -> float:
        """Return seconds."""
        return float(next(self._ticks))


def test_a_budget_is_a_share_of_seconds_since_it_began() -> None:
    """Of ten seconds half is left for less than five readings."""
    budget = Budget(10.0, Steps())
    assert [budget.has_left(0.5) for _ in range(6)] == [True] * 4 + [False] * 2


def test_what_is_busy_is_simulated_first_and_the_rest_is_named(replay_of: Callable[..., Replay]) -> None:
    """Half of twelve seconds lasts for what all share and for the busiest stage; the others are named, none is lost."""
    replay = replay_of(STEPS)
    full = {one.name: one.gain for one in find_candidates(replay)}
    assert replay.budget.left_out == []
    replay.budget = Budget(12.0, Steps())
    found = {one.name: one.gain for one in find_candidates(replay)}
    assert len(found) == 5
    assert {"cores", "stage:fetch", "workers:fetch"} <= set(found)
    assert len(found) + len(replay.budget.left_out) == len(full)
    assert all(full[name] == pytest.approx(gain) for name, gain in found.items())
    assert "deliver 20 % faster" in replay.budget.left_out


def test_a_remedy_that_is_not_predicted_comes_with_the_command_that_does(replay_of: Callable[..., Replay]) -> None:
    """Without a figure, and noted as left out; `headrace whatif` tells."""
    replay = replay_of(STEPS)
    replay.budget = Budget(0.5, Steps())
    (remedy,) = remedies(replay, [Advice(says="more workers", settings=("fetch.workers=4",))])
    assert remedy.ratio is None
    assert remedy.command.startswith("headrace whatif ")
    assert replay.budget.left_out == ["what it buys: more workers"]
