"""The sweep of batch sizes: the sweet spot, where it ends, and what it does when memory runs out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tuning_fakes import Numbers

import headrace as hr
from headrace.base.errors import EngineError
from headrace.base.plan import Plan, resolve
from headrace.diagnose.replay.costs import Spread
from headrace.tune.out_of_memory import is_out_of_memory
from headrace.tune.predictions import _curves_by_threads
from headrace.tune.sweep import (
    BatchCosts,
    explain_stop,
    scale_to_run,
    slowdowns_by_threads,
    sweep_batches,
    sweep_points,
    sweet_spot,
)


def rates(launch: float, item: float, sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> dict[int, float]:
    """Return items per second of a device that takes launch + item * n seconds."""
    return {n: n / (launch + item * n) for n in sizes}


def sweep(call: Any, largest: int = 64) -> BatchCosts:
    """Sweep a pipeline whose device stage is a function of the batch."""
    pipeline = hr.Pipeline(Numbers(), stages=[hr.stage("device", call, kind="device")])
    plan = resolve(Plan(), [stage.defaults() for stage in pipeline.stages], 2)
    return sweep_batches(pipeline, plan, "device", Numbers(), largest=largest)


def test_the_sweet_spot_is_where_most_of_the_gain_is_had() -> None:
    """Launch and item equal: 1/2 to 32/33 of the limit; 95 % of the gain needs 0.946 of it, so 32; 90 % needs 16."""
    assert sweet_spot(rates(1.0, 1.0)) == 32
    assert sweet_spot(rates(1.0, 1.0), share=0.90) == 16


def test_the_sweet_spot_is_not_the_largest() -> None:
    """A device without a fixed cost gains nothing: batch 1."""
    assert sweet_spot(rates(0.0, 1.0)) == 1
    assert sweet_spot({}) is None


def test_a_plateau_ends_the_sweep() -> None:
    """Two doublings in a row that gain less than 2 %; one alone does not."""
    assert explain_stop({1: 0.1, 2: 0.2, 4: 0.4})
    assert not explain_stop({1: 0.1, 2: 0.2})
    assert not explain_stop({1: 0.1, 2: 0.12, 4: 0.24})


def test_a_step_after_a_plateau_of_one_is_found() -> None:
    """Cost steps at 2 and gains at 4, as with tensor cores."""
    assert not explain_stop({1: 0.1, 2: 0.2, 4: 0.25})


def test_a_long_call_ends_the_sweep() -> None:
    """Whoever waits three seconds for a batch wants no larger one."""
    assert "takes 3.0 s" in explain_stop({1: 3.0})


def test_every_size_is_measured_once_and_nothing_larger() -> None:
    """Powers of two up to the largest, on a device that gains with each."""
    seen: list[int] = []

    def device(batch: Any) -> list[int]:
        seen.append(len(batch))
        return [0] * len(batch)

    costs = sweep(device, largest=8)
    assert set(costs.seconds) <= {1, 2, 4, 8}
    assert max(seen) <= 8


@pytest.mark.parametrize(
    "error",
    [MemoryError("no"), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), RuntimeError("std::bad_alloc")],
)
def test_it_backs_off_when_memory_runs_out(error: Exception) -> None:
    """A batch of 8 has no memory: 1, 2 and 4 are measured, the limit is remembered, nothing larger is tried."""
    seen = set()

    def device(batch: Any) -> list[int]:
        seen.add(len(batch))
        if len(batch) >= 8:
            raise error
        return [0] * len(batch)

    costs = sweep(device)
    assert costs.out_of_memory_at == 8
    assert max(costs.seconds) <= 4
    assert max(seen) == 8


def test_what_is_no_lack_of_memory_is_no_limit() -> None:
    """A stage that fails otherwise leaves no limit."""

    def device(batch: Any) -> list[int]:
        if len(batch) >= 4:
            raise ValueError("expected a batch of at most 2")
        return [0] * len(batch)

    costs = sweep(device)
    assert costs.out_of_memory_at is None
    assert max(costs.seconds) <= 2


def test_causes_are_looked_through() -> None:
    """The library's error is often the cause of ours."""
    error = EngineError("the model cannot be opened")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)
    assert not is_out_of_memory(EngineError("the model cannot be opened"))
    assert is_out_of_memory(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer"
    )


def test_costs_are_brought_to_the_level_of_the_run() -> None:
    """Twice as slow in the run at the sizes that it saw: twice as slow at the others; the run's own stay."""
    assert scale_to_run({1: 1.0, 2: 1.5, 4: 2.0}, {1: 2.0, 2: 3.0}) == {1: 2.0, 2: 3.0, 4: 4.0}
    assert scale_to_run({1: 1.0}, {}) == {1: 1.0}


def test_points_say_where_they_come_from() -> None:
    """Predicted for the pipeline, measured for the device alone, and the size that had no memory."""
    costs = BatchCosts("device", {1: 0.1, 2: 0.12}, {1: 5e6, 2: 7e6}, out_of_memory_at=4)
    points = sweep_points(costs, {1: (8.0, 0.5)})
    assert [(point.batch, point.source) for point in points] == [
        (1, "predicted"),
        (2, "measured"),
        (4, "out of memory"),
    ]
    assert points[0].throughput == 8.0
    assert points[1].memory_bytes == pytest.approx(2e6)
    assert points[2].throughput is None
    assert [point.batch for point in points if point.is_sweet_spot] == [2]


def costs_of(stage: str, **seconds: float) -> BatchCosts:
    """Return costs of batches: `one=` for a batch of 1, `two=` of 2."""
    sizes = {"one": 1, "two": 2, "four": 4}
    return BatchCosts(stage, seconds={sizes[name]: value for name, value in seconds.items()})


def test_what_threads_cost_by_batch() -> None:
    """Of sizes that both were measured with; a stage that was not measured with the base's threads tells nothing."""
    costs = {
        1: {"process": costs_of("process", one=0.001, two=0.002, four=0.004)},
        2: {"process": costs_of("process", one=0.002, two=0.002)},
        3: {"process": costs_of("process")},
    }
    assert slowdowns_by_threads(costs, "process", 2) == {1: {1: 0.5, 2: 1.0}, 2: {1: 1.0, 2: 1.0}, 3: {}}
    assert slowdowns_by_threads(costs, "process", 3) == {1: {}, 2: {}, 3: {}}
    assert slowdowns_by_threads(costs, "process", 8) == {1: {}, 2: {}, 3: {}}


@dataclasses.dataclass
class Spreads:
    """A replay of which the spread over threads is all that matters."""

    spreads: dict[str, Spread]


def test_a_model_that_loses_by_threads_is_predicted_faster_without() -> None:
    """Two threads kept 1.6 cores busy, which the simulator takes for work: one would take 1.6 times as long. Measured: 0.8."""
    costs = {
        1: {"process": costs_of("process", one=0.8, two=2.0)},
        2: {"process": costs_of("process", one=1.0, two=2.0)},
    }
    curves = {"process": {1: 0.01, 2: 0.02, 8: 0.05}}
    found = _curves_by_threads(costs, 2, curves, Spreads({"process": Spread(2, 1.6)}))
    assert found == {1: {"process": pytest.approx({1: 0.008 / 1.6, 2: 0.02 / 1.6, 8: 0.05 / 1.6})}}
    assert _curves_by_threads(costs, 4, curves, Spreads({"process": Spread(4, 1.6)})) == {}
    assert _curves_by_threads(costs, 2, curves, object()) == {}
