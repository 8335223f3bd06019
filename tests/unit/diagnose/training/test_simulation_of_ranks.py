"""Simulated ranks that exchange gradients, against what can be added up by hand."""

from __future__ import annotations

import math

import pytest

from headrace.diagnose.training.simulation import (
    LoaderModel,
    Microbatch,
    SimulatedTraining,
    StepModel,
    TrainingModel,
    simulate_training,
)
from headrace.diagnose.training.simulation_exchange import ExchangeModel, Link, fill_buckets, fit_bandwidth
from headrace.diagnose.training.simulation_machine import TICK, Need


def _rank(
    *, forward: float = 0.01, backward: float = 0.02, update: float = 0.005, steps: int = 10, batches: int = 1
) -> TrainingModel:
    """Return a training that computes; only the last of several batches of a step exchanges."""
    made = tuple(
        Microbatch(
            samples=8,
            load=(),
            compute=(Need(0.0, forward),),
            backward=(Need(0.0, backward),),
            exchanges=number == batches - 1,
        )
        for number in range(batches)
    )
    step = StepModel(microbatches=made, update=(Need(0.0, update),))
    return TrainingModel(loader=LoaderModel(workers=0), epochs=((step,) * steps,), cores=8.0)


def _train(
    first: TrainingModel, *peers: TrainingModel, exchange: ExchangeModel, cores: float = 8.0
) -> SimulatedTraining:
    return simulate_training(first.replace(peers=peers, exchange=exchange, cores=cores))


def _step(simulated: SimulatedTraining) -> float:
    return simulated.step_seconds[-1]


def test_a_ring_moves_what_the_formula_says() -> None:
    """Two ranks send the bytes once, many ranks twice; each step of the ring is a message."""
    link = Link(latency=0.001, bandwidth=1e6)
    assert link.seconds(1e6, 2) == pytest.approx(0.002 + 1.0)
    assert link.seconds(1e6, 4) == pytest.approx(0.006 + 1.5)


def test_what_costs_more_cpu_than_time_is_done_by_several_threads() -> None:
    """A transfer of 1 s with 1.5 s of CPU takes one and a half cores."""
    need = Link(latency=0.0, bandwidth=1e6, byte_cpu=1.5e-6).transfer(1e6, 2)
    assert (need.blocked, need.cpu, need.width) == (0.0, pytest.approx(1.0), pytest.approx(1.5))


def test_one_bucket_is_exposed_as_a_whole() -> None:
    """It is full when the backward pass ends: nothing overlaps."""
    exchange = ExchangeModel(buckets=(1e6,), link=Link(latency=0.0, bandwidth=1e8))
    simulated = _train(_rank(), _rank(), exchange=exchange)
    assert _step(simulated) == pytest.approx(0.01 + 0.02 + 0.01 + 0.005)
    assert simulated.exchange_seconds == pytest.approx(10 * 0.01)


def test_the_simulation_exposes_what_the_closed_form_does() -> None:
    """With buckets that are sent while the backward pass goes on, on a link that is slow and on one that is not."""
    for bandwidth in (2e7, 1e8, 1e9):
        exchange = ExchangeModel(buckets=(1e5, 4e5, 5e5), link=Link(latency=1e-4, bandwidth=bandwidth))
        simulated = _train(_rank(), _rank(), _rank(), exchange=exchange)
        exposed = exchange.exposed(0.02, 3)
        assert _step(simulated) == pytest.approx(0.035 + exposed)


def test_all_wait_for_the_rank_that_is_late() -> None:
    """Steps last as long as those of the slowest rank."""
    exchange = ExchangeModel(buckets=(1e6,), link=Link(latency=0.0, bandwidth=math.inf))
    assert _step(_train(_rank(), _rank(forward=0.03), exchange=exchange)) == pytest.approx(0.055)


def test_ranks_share_the_cores() -> None:
    """Four ranks on two cores take twice as long as with a core each, but for what a tick of the kernel decides."""
    exchange = ExchangeModel(buckets=(1e6,), link=Link(latency=0.0, bandwidth=math.inf))
    ranks = [_rank() for _ in range(4)]
    assert _step(_train(*ranks, exchange=exchange, cores=2.0)) == pytest.approx(0.07, abs=TICK)
    assert _step(_train(*ranks, exchange=exchange, cores=4.0)) == pytest.approx(0.035)


def test_batches_that_do_not_exchange_cost_no_link() -> None:
    """Of four accumulated batches the last one exchanges."""
    exchange = ExchangeModel(buckets=(1e6,), link=Link(latency=0.0, bandwidth=1e8))
    simulated = _train(_rank(batches=4), _rank(batches=4), exchange=exchange)
    assert _step(simulated) == pytest.approx(4 * 0.03 + 0.01 + 0.005)


def test_samples_of_all_ranks_count() -> None:
    """Three ranks that do not disturb each other learn from three times as many samples a second."""
    exchange = ExchangeModel(buckets=(1e6,), link=Link(latency=0.0, bandwidth=math.inf))
    alone = simulate_training(_rank())
    together = _train(_rank(), _rank(), _rank(), exchange=exchange)
    assert together.rate == pytest.approx(3 * alone.rate)


def test_buckets_are_filled_from_the_last_parameter_on() -> None:
    """The first holds a megabyte at least, the others the most that was asked for, and the last one what is left."""
    mib = 2**20
    assert fill_buckets([3 * mib, mib, mib, mib // 2, mib // 2], most=2 * mib) == (mib, 2 * mib, 3 * mib)
    assert fill_buckets([mib] * 4, most=100 * mib) == (mib, 3 * mib)
    assert fill_buckets([mib] * 4, most=100 * mib, first=100 * mib) == (4 * mib,)
    assert fill_buckets([]) == ()


def test_the_bandwidth_of_a_recorded_exchange_is_found_again() -> None:
    """What is exposed with a bandwidth gives that bandwidth; less than the latency alone gives no bound."""
    buckets = (1e5, 4e5, 5e5)
    for bandwidth in (1e7, 1.25e8):
        exposed = ExchangeModel(buckets=buckets, link=Link(latency=1e-4, bandwidth=bandwidth)).exposed(0.02, 4)
        found = fit_bandwidth(buckets, latency=1e-4, backward=0.02, exposed=exposed, ranks=4)
        assert found == pytest.approx(bandwidth, rel=2e-3)
    assert fit_bandwidth(buckets, latency=1e-4, backward=0.02, exposed=1e-6, ranks=4) == math.inf
