"""Warm-up: each batch size that will be used, with a real item, before the first batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.stages.stage import FunctionStage
from headrace.testing import FaultyStage

Run = Callable[..., Any]


@pytest.mark.parametrize(("largest", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_sizes(run: Run, largest: int, sizes: list[int]) -> None:
    """Powers of two up to the largest are called twice each, and their costs are in the result."""
    calls: list[int] = []

    def device(batch: Any) -> Any:
        calls.append(len(batch))
        return batch

    ran = run([hr.stage("d", device, kind="device")], [np.zeros(2)], {"stages": {"d": {"batch": largest}}})
    assert calls == [size for size in sizes for _ in range(2)] + [1]
    assert list(ran.result.cost_curves["d"]) == sizes
    assert all(seconds >= 0 for seconds in ran.result.cost_curves["d"].values())


def test_off_when_the_plan_says_so(run: Run) -> None:
    """Without warm-up a batch size is first called when it is needed, and there is no cost curve."""
    calls: list[int] = []
    device = hr.stage("d", lambda batch: calls.append(len(batch)) or batch, kind="device")
    ran = run([device], [np.zeros(2)], {"stages": {"d": {"batch": 8}}, "run": {"warm_up": False}})
    assert calls == [1]
    assert ran.result.cost_curves == {}


def test_warm_up_leaves_no_trace(run: Run) -> None:
    """Items tried at warm-up give neither spans nor results of their own."""
    ran = run([hr.stage("d", list, kind="device")], range(5), {"stages": {"d": {"batch": 4}}})
    assert len([span for span in ran.spans if span.stage == "d"]) == 5
    assert ran.results == {str(n): n for n in range(5)}


def test_warm_up_goes_through_the_stages_before(run: Run) -> None:
    """Where stages share the device's worker, the device is warmed up with what they make of the item."""
    shapes: set[Any] = set()
    stages = [
        hr.stage("pre", lambda n: np.full((2, 3), n)),
        hr.stage("d", lambda batch: shapes.add(batch.shape) or batch, kind="device"),
    ]
    run(stages, [1], {"stages": {"d": {"executor": "inline", "batch": 2}}})
    assert shapes == {(1, 2, 3), (2, 2, 3)}


def test_warm_up_in_a_process(run: Run) -> None:
    """A device in a child process is warmed up there."""
    stages = [FunctionStage("d", np.abs, kind="device")]
    plan = {"stages": {"d": {"executor": "process", "workers": 1, "batch": 4}}}
    assert list(run(stages, [np.zeros(2)], plan).result.cost_curves["d"]) == [1, 2, 4]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_bad_first_item(run: Run, executor: str) -> None:
    """A first item that fails or kills spoils neither the run nor the others."""
    bad = ["!raise"] if executor == "thread" else ["!kill"]
    plan = {"stages": {"d": {"executor": executor, "workers": 1, "batch": 2}}}
    ran = run([FaultyStage("d", kind="device")], [*bad, "x", "y"], plan)
    assert set(ran.results) == {"1", "2"}


def test_cost_curve_is_of_the_calls(run: Run) -> None:
    """The emulated device's curve is read back from the calls."""

    class Emulated(hr.Module):
        input = hr.ArrayInput()

        def load(self, context: Any) -> None:
            """Open the device."""
            self.device = context.open_model()

        def process(self, batch: Any) -> Any:
            """Take its time."""
            return self.device(batch)

    options = {"launch_seconds": 0.01, "item_seconds": 0.005}
    ran = run(
        None,
        [np.zeros(1)],
        {"model": {"engine": "emulated", "options": options}, "stages": {"t.process": {"batch": 4}}},
        modules={"t": Emulated()},
        source={"tasks": ["t"]},
    )
    curve = ran.result.cost_curves["t.process"]
    assert {size: seconds >= 0.01 + 0.005 * size for size, seconds in curve.items()} == {1: True, 2: True, 4: True}
    assert ran.result.is_emulated


@pytest.mark.parametrize("receivers", [1, 3])
def test_the_first_job_may_go_alone(run: Run, receivers: int) -> None:
    """Until it is through none is received, so that nothing piles up behind a model that warms up; without, they do."""

    def others_come_during_the_first(first_alone: bool, patience_seconds: float) -> bool:
        other, came = threading.Event(), []

        def slow(batch: list[int]) -> list[int]:
            came.append(other.wait(0 if came else patience_seconds))
            return batch

        def before(number: int) -> int:
            if number:
                other.set()
            return number

        stages = [hr.stage("before", before), hr.stage("slow", slow, kind="device")]
        plan = {"run": {"warm_up": False}, "source": {"receivers": receivers}, "stages": {"slow": {"batch": 1}}}
        run(stages, range(12), plan, first_alone=first_alone)
        return bool(came[0])

    assert not others_come_during_the_first(first_alone=True, patience_seconds=0.1)
    assert others_come_during_the_first(first_alone=False, patience_seconds=60)


def test_a_first_job_that_fails_holds_up_nobody(run: Run) -> None:
    """It is through when it has failed, as when it was delivered."""
    ran = run([hr.stage("s", lambda n: 1 // n)], range(5), first_alone=True)
    assert ran.results == {str(n): 1 // n for n in range(1, 5)}
