"""Simulated trainings against results that can be calculated by hand."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.diagnose.training.simulation import (
    LoaderModel,
    Microbatch,
    SimulatedTraining,
    StepModel,
    TrainingModel,
    simulate_training,
)
from headrace.diagnose.training.simulation_bounds import bound_ratio, step_bounds
from headrace.diagnose.training.simulation_machine import TICK, Machine, Need, Process


def _step(load: Need, compute: Need) -> StepModel:
    return StepModel(microbatches=(Microbatch(samples=8, load=(load,), compute=(compute,)),), update=())


def _model(
    load: Need, compute: Need, loader: LoaderModel, *, steps: int = 60, cores: float = 8.0, epochs: int = 1
) -> TrainingModel:
    epoch = tuple(_step(load, compute) for _ in range(steps))
    return TrainingModel(loader=loader, epochs=(epoch,) * epochs, cores=cores)


def _middle(simulated: SimulatedTraining) -> float:
    """Return what a step took on an average, without the quarter in which workers begin, and that in which they run out."""
    quarter = len(simulated.ends) // 4
    return (simulated.ends[-quarter] - simulated.ends[quarter]) / (len(simulated.ends) - 2 * quarter)


SLEEP, COMPUTE = Need(0.04, 0.0), Need(0.0, 0.01)


def test_without_workers_loading_and_step_add_up() -> None:
    """With 0 workers a step takes loading plus computing, and all loading counts as waiting."""
    simulated = simulate_training(_model(SLEEP, COMPUTE, LoaderModel(workers=0)))
    assert simulated.step_seconds == pytest.approx([0.05] * 59)
    assert simulated.waits == pytest.approx([0.04] * 60)


@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.04), (2, 0.02), (4, 0.01), (8, 0.01)])
def test_throughput_is_that_of_the_slower_side(workers: int, seconds: float) -> None:
    """Loading of 40 ms by W workers beside a step of 10 ms: max(40 / W, 10) ms, on an average."""
    simulated = simulate_training(_model(SLEEP, COMPUTE, LoaderModel(workers=workers), steps=96))
    assert _middle(simulated) == pytest.approx(seconds, rel=1e-6)


def test_workers_and_step_share_the_cores() -> None:
    """Two workers that compute 40 ms and a step of 20 ms on 2 cores: 60 ms of CPU a step over 2 cores are 30 ms, not 20."""
    model = _model(Need(0.0, 0.04), Need(0.0, 0.02), LoaderModel(workers=4, prefetch=4), cores=2.0, steps=200)
    simulated = simulate_training(model)
    assert _middle(simulated) == pytest.approx(0.03, rel=0.02)
    assert step_bounds(model).least * 8 == pytest.approx(0.03)
    assert simulated.cores_used == pytest.approx(200 * 0.06)


def test_one_slow_batch_blocks_those_behind_it_only_in_order() -> None:
    """In order, the training thread waits for the slow batch; else that and the one behind it in its worker come last."""
    loads = [Need(0.5 if number == 4 else 0.01, 0.0) for number in range(20)]
    epoch = tuple(_step(load, COMPUTE) for load in loads)
    ordered = TrainingModel(loader=LoaderModel(workers=2), epochs=(epoch,), cores=8.0)
    free = ordered.replace(loader=LoaderModel(workers=2, in_order=False))
    assert max(simulate_training(ordered).waits[4:5]) > 0.4
    waits = simulate_training(free).waits
    assert max(range(20), key=lambda place: waits[place]) == 18
    assert simulate_training(free).seconds < simulate_training(ordered).seconds


def test_no_more_batches_are_loaded_ahead_than_prefetch_allows() -> None:
    """During the first step of the training thread workers load W x prefetch batches."""
    simulated = simulate_training(
        _model(Need(0.01, 0.0), Need(0.0, 100.0), LoaderModel(workers=2, prefetch=3), steps=20)
    )
    assert simulated.waits[0] == pytest.approx(0.01)
    assert simulated.waits[1:] == pytest.approx([0.0] * 19)
    starved = simulate_training(_model(Need(0.01, 0.0), Need(0.0, 0.0), LoaderModel(workers=2, prefetch=1), steps=20))
    assert starved.ends[-1] == pytest.approx(0.1)


def test_turn_of_an_epoch_costs_unless_workers_persist() -> None:
    """Workers that start again cost turn and warm-up in each epoch; persistent ones in the first only."""
    loader = LoaderModel(workers=2, turn=Need(0.05, 0.0), warm_up=Need(0.2, 0.0))
    again = simulate_training(_model(SLEEP, COMPUTE, loader, epochs=3, steps=10))
    kept = simulate_training(_model(SLEEP, COMPUTE, dataclasses.replace(loader, persistent=True), epochs=3, steps=10))
    assert again.ends[9] == pytest.approx(kept.ends[9])
    assert again.seconds - kept.seconds == pytest.approx(2 * (2 * 0.05 + 0.2))


def test_threads_of_a_step_claim_several_cores() -> None:
    """Of a step's 2 threads on 2 cores one shares its core with a worker that computes: each of those takes twice as long."""
    model = _model(Need(0.0, 1e6), Need(0.0, 0.02, 2.0), LoaderModel(workers=1), cores=2.0, steps=2)
    machine = Machine(2.0)

    def busy(need: Need) -> Process:
        yield need
        ends.append(machine.now)

    ends: list[float] = []
    machine.start(busy(Need(0.0, 0.02, 2.0)))
    machine.start(busy(Need(0.0, 1.0)))
    machine.run()
    assert ends[0] == pytest.approx(0.04, abs=2 * TICK)
    assert ends[1] == pytest.approx(1.02, abs=2 * TICK)
    assert machine.run_delay == pytest.approx(0.04, abs=2 * TICK)
    assert step_bounds(model).cores * 8 == pytest.approx((1e6 + 0.04) / 2)


def test_other_programs_take_their_share() -> None:
    """One thread on 1 core beside another program that always computes is half as fast."""
    model = _model(Need(0.0, 0.0), COMPUTE, LoaderModel(workers=0), cores=1.0)
    assert simulate_training(model.replace(others=1.0)).rate == pytest.approx(simulate_training(model).rate / 2)


def test_bounds_are_never_exceeded() -> None:
    """No simulated training is faster than its bounds, whatever the numbers."""
    for workers in range(4):
        for cores in (1.0, 2.0):
            model = _model(Need(0.01, 0.02), Need(0.003, 0.015), LoaderModel(workers=workers), cores=cores, steps=100)
            assert (
                _middle(simulate_training(model)) >= step_bounds(model).least * 8 * 0.995
            )  # some batches are ready when the window begins
    assert bound_ratio(model, model) == 1.0
