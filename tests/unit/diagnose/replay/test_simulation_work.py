"""How much work the simulations of a run are: counted in steps, which are the same on every machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headrace.diagnose.candidates import find_candidates
from headrace.diagnose.replay import Replay
from headrace.diagnose.verdict.remedies import predict_ratio
from headrace.runs.formats.prediction import Change

#: Steps of a simulation, and half as many more: what one takes is told from one of the run as recorded.
MOST_EVENTS = 30_000


@pytest.fixture
def fanned(fan_of: Callable[..., Replay]) -> Replay:
    """A run whose jobs are cut into 100 children of 1 ms each: 400 of them are 100,000 steps."""
    return fan_of(whole=0.010, child=0.001, children=100)


def test_fewer_jobs_are_simulated_where_each_takes_many_steps(fanned: Replay) -> None:
    """The steps are bounded, and the rate is still that of one worker with 100 children of 1 ms for each job."""
    simulated = fanned.simulate()
    assert simulated.trace.num_events <= MOST_EVENTS
    assert 100 <= len(simulated.latencies) < 400
    assert simulated.throughput == pytest.approx(10, rel=0.05)


@pytest.mark.full
def test_candidates_are_simulated_within_the_bound(fanned: Replay) -> None:
    """Every candidate is tried, none with more steps than one simulation may take on an average."""
    num_events, num_simulations = fanned.num_events, fanned.num_simulations
    names = {candidate.name for candidate in find_candidates(fanned)}
    assert {"stage:cut", "stage:piece", "workers:piece", "cores"} <= names
    assert fanned.num_events - num_events <= MOST_EVENTS * (fanned.num_simulations - num_simulations)


@pytest.mark.full
def test_resamples_of_a_remedy_are_within_the_bound(fanned: Replay) -> None:
    """A remedy's interval is made of resampled runs no larger than the others, and holds the gain."""
    num_events, num_simulations = fanned.num_events, fanned.num_simulations
    ratio = predict_ratio(fanned, Change(speedups={"piece": 2.0}))
    assert ratio is not None
    assert ratio.low < 2.0 < ratio.high
    assert fanned.num_events - num_events <= MOST_EVENTS * (fanned.num_simulations - num_simulations)


@pytest.mark.parametrize(("largest", "resamples"), [(0.02, 4), (0.1, 8)], ids=["alike", "some huge"])
def test_a_remedy_is_resampled_further_only_where_its_spread_counts(
    replay_of: Callable[..., Replay], largest: float, resamples: int
) -> None:
    """Jobs that are alike are resampled four times, with a change and without; where some neighbours are huge eight times."""
    cpu = np.where(np.arange(120) % 60 < 12, largest, 0.02)
    replay = replay_of(
        [{"name": "parse", "cpu": cpu}, {"name": "rest", "cpu": 0.015}, {"name": "deliver"}], gap=cpu.mean()
    )
    replay.simulate()
    before = replay.num_simulations
    assert predict_ratio(replay, Change(speedups={"parse": 2.0})) is not None
    assert replay.num_simulations - before == 1 + 2 * resamples


def test_the_run_as_recorded_is_simulated_once(fanned: Replay) -> None:
    """All that ask for it are given the same simulation."""
    before = fanned.num_simulations
    fanned.simulate()
    assert fanned.misfit == pytest.approx(fanned.simulate().throughput / fanned.throughput - 1)
    assert fanned.num_simulations == before + 1


def test_a_run_of_few_steps_is_simulated_with_as_many_jobs_as_ever(fan_of: Callable[..., Replay]) -> None:
    """The bound changes nothing of a run that does not reach it."""
    assert len(fan_of(whole=0.010, child=0.001, children=2).simulate().latencies) == 400
