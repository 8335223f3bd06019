"""The cost curve of warm-up beyond the Plan's own batch sizes: which sizes, how often, and when it stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.pipeline.batch_buffer import BatchBuffer
from headrace.pipeline.execute import Measuring
from headrace.pipeline.execute import run as execute
from headrace.pipeline.warm_up import CostCurve, WarmUp, measure_curve
from headrace.stages.stage import FunctionStage
from headrace.testing import ListSource


class Device:
    """A device of known cost on a clock of its own: launch + item * n seconds."""

    def __init__(self, launch: float, item: float, *, fails_above: int = 10_000) -> None:
        self.launch, self.item, self.fails_above = launch, item, fails_above
        self.now = 0
        self.calls: list[int] = []

    def now_ns(self) -> int:
        """Return the device's clock."""
        return self.now

    def __call__(self, batch: Any) -> Any:
        """Take the time of the batch."""
        if len(batch) > self.fails_above:
            raise ValueError(f"Got invalid dimensions: {len(batch)}\nsecond line")
        self.calls.append(len(batch))
        self.now += round((self.launch + self.item * len(batch)) * 1e9)
        return list(batch)

    def measured(
        self,
        *,
        plan: int = 1,
        curve: int = 8,
        repeats: int = 3,
        value: Any = None,
        call: Callable[[Any], Any] | None = None,
        max_bytes: int = 2**28,
    ) -> CostCurve:
        """Return the device's curve."""
        found = CostCurve("d")
        more = WarmUp(curve_batch=curve, repeats=repeats, max_bytes=max_bytes)
        value = np.zeros(2) if value is None else value
        buffer = BatchBuffer(plan)
        measure_curve(found, call or self, value, buffer=buffer, max_batch=plan, more=more, now_ns=self.now_ns)
        return found


@pytest.mark.parametrize(
    ("plan", "curve", "sizes"),
    [(1, 0, [1]), (1, 8, [1, 2, 4, 8]), (6, 8, [1, 2, 4, 6, 8]), (16, 8, [1, 2, 4, 8, 16]), (2, 2, [1, 2])],
)
def test_sizes_and_repeats(plan: int, curve: int, sizes: list[int]) -> None:
    """The Plan's own sizes and the powers of two up to the one asked for, each as often as asked for, are read exactly."""
    device = Device(0.002, 0.001)
    found = device.measured(plan=plan, curve=curve)
    assert dict(sorted(found.seconds.items())) == {size: [pytest.approx(0.002 + 0.001 * size)] * 3 for size in sizes}
    assert {size: len(calls) for size, calls in found.call_cpu_seconds.items()} == dict.fromkeys(found.seconds, 3)
    assert (found.not_measured, found.num_calls) == ("", len(device.calls))


def test_a_slow_device_has_fewer_sizes() -> None:
    """Sizes that would take too long are left out with the reason, and what goes beyond the Plan takes at most 1.5 s."""
    device = Device(0.0, 0.2)
    found = device.measured()
    assert list(found.seconds) == [1, 2]
    assert found.not_measured.startswith(
        "no batch of 4 or more was measured at warm-up: it would take more than the 1.5 s"
    )
    assert device.now / 1e9 - 2 * 0.2 <= 1.5


def test_the_plans_own_sizes_are_measured_whatever_they_take() -> None:
    """A batch that the run will use is warmed up even where it takes long; only repeating it is not."""
    found = Device(2.0, 0.5).measured(plan=8)
    assert {size: len(calls) for size, calls in found.seconds.items()} == {1: 1, 2: 1, 4: 1, 8: 1}
    assert found.not_measured == ""


def test_the_articles_device_has_all_sizes() -> None:
    """13.6 ms + 34 ms a picture, on a T4: one measured call at least of 1, 2, 4 and 8 fits the time."""
    found = Device(0.0136, 0.034).measured()
    assert list(found.seconds) == [1, 2, 4, 8]
    assert found.seconds[8][0] == pytest.approx(0.2856)


def test_a_model_of_fixed_batch_keeps_its_own() -> None:
    """A size that the model refuses ends it, with the model's own words, and the Plan's size is repeated all the same."""
    found = Device(0.0, 0.001, fails_above=1).measured()
    assert found.seconds == {1: [pytest.approx(0.001)] * 3}
    assert found.not_measured == (
        "no batch of 2 or more was measured at warm-up: the stage does not take it (ValueError: Got invalid dimensions: 2)"
    )


def test_a_stage_that_looks_at_one_input_only_is_found_out() -> None:
    """A process that returns one result whatever it gets would look as if batches were free."""
    device = Device(0.0, 0.001)
    found = device.measured(call=lambda batch: device(batch)[:1])
    assert list(found.seconds) == [1]
    assert "WrongResultCount" in found.not_measured


def test_large_inputs_are_not_multiplied() -> None:
    """Sizes whose input alone would fill the memory are not tried."""
    found = Device(0.0, 0.0).measured(value=np.zeros(2**16), curve=8, max_bytes=2**20)
    assert list(found.seconds) == [1, 2]
    assert "the input alone would take 2 MiB; 1 MiB are the most" in found.not_measured


def test_a_bad_first_item_has_no_curve() -> None:
    """Where the Plan's own size fails nothing more is tried."""
    device = Device(0.0, 0.001, fails_above=0)
    found = device.measured()
    assert (found.seconds, found.not_measured, device.calls) == ({}, "", [])


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_all_calls_reach_the_run_folder(tmp_path: Path, executor: str) -> None:
    """run.json keeps each call's wall and CPU time, wherever the stage ran; the result its median."""
    pipeline = hr.Pipeline(ListSource([np.zeros(2)]), stages=[FunctionStage("d", np.abs, kind="device")])
    plan = hr.Plan.from_table({"stages": {"d": {"executor": executor, "workers": 1}}})
    result = execute(pipeline, plan, output=tmp_path / "run", measuring=Measuring(curve_batch=4, curve_repeats=3))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    for key in ("cost_curves", "cost_curve_cpu"):
        assert {size: len(calls) for size, calls in info[key]["d"].items()} == {"1": 3, "2": 3, "4": 3}
    assert result.cost_curves["d"][4] == sorted(info["cost_curves"]["d"]["4"])[1]
