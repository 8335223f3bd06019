"""What new workers cost besides is known from recorded epochs, and paid where workers are new."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.diagnose.training.simulation import LoaderModel, Microbatch, StepModel, TrainingModel, simulate_training
from headrace.diagnose.training.simulation_fresh import take_out_fresh_costs
from headrace.diagnose.training.simulation_machine import Need
from headrace.diagnose.training.simulation_needs import Needs
from headrace.runs.training_phases import LoaderWork, Phase

_EPOCHS, _STEPS, _WORKERS = 5, 10, 2


def test_what_is_new_is_told_from_the_work_itself() -> None:
    """Each worker takes 3 ms more for its first batch and 1 ms for its second, the first step 5 ms more: all is taken out."""
    place = np.arange(_EPOCHS * _STEPS) % _STEPS
    zero = np.zeros(len(place))
    more = 0.003 * (place < _WORKERS) + 0.001 * ((place >= _WORKERS) & (place < 2 * _WORKERS))
    loading = {LoaderWork.ITEMS: Needs(zero + 0.001, 0.004 + more)}
    phases = {Phase.FORWARD: Needs(zero, zero + 0.002), Phase.BACKWARD: Needs(zero, 0.002 + 0.005 * (place == 0))}
    starts = np.arange(0, len(place), _STEPS)
    found = take_out_fresh_costs(loading, phases, np.ones(len(place), np.int64), starts, _WORKERS)
    assert found.batches == pytest.approx((0.003, 0.001))
    assert found.steps == pytest.approx((0.005,))
    assert found.loading[LoaderWork.ITEMS].cpu == pytest.approx(zero + 0.004)
    assert found.loading[LoaderWork.ITEMS].blocked == pytest.approx(zero + 0.001)
    assert found.phases[Phase.BACKWARD].cpu == pytest.approx(zero + 0.002)


def test_nothing_is_taken_out_where_the_first_batches_cost_no_more() -> None:
    """First batches that are cheaper than others are batches like others."""
    cpu = np.full(20, 0.004)
    cpu[0] = 0.001
    ones, starts = np.ones(20, np.int64), np.array([0])
    found = take_out_fresh_costs({LoaderWork.ITEMS: Needs(np.zeros(20), cpu)}, {}, ones, starts, 1)
    assert found.batches == ()
    assert found.loading[LoaderWork.ITEMS].cpu == pytest.approx(cpu)


@pytest.mark.parametrize(("persistent", "epochs_that_pay"), [(False, 3), (True, 1)])
def test_new_workers_pay_in_each_epoch_unless_they_persist(persistent: bool, epochs_that_pay: int) -> None:
    """The run is longer by the first batch of a worker and by the step behind it, once for each time that it was started."""

    def seconds(read: float, **besides: tuple[Need, ...]) -> float:
        batch = Microbatch(samples=8, load=(Need(read, 0.0),), compute=(Need(0.0, 0.001),))
        epochs = ((StepModel(microbatches=(batch,), update=()),) * 6,) * 3
        loader = LoaderModel(workers=1, persistent=persistent, **besides)
        return simulate_training(TrainingModel(loader=loader, epochs=epochs, cores=8.0)).seconds

    more = seconds(0.02, first_batches=(Need(0.0, 0.03),)) - seconds(0.02)
    assert more == pytest.approx(0.03 * epochs_that_pay)
    more = seconds(0.0, first_steps=(Need(0.0, 0.5),)) - seconds(0.0)
    assert more == pytest.approx(0.5 * epochs_that_pay)
