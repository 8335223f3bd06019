"""Rungs of a budget's ladder that take another model, or leave out frames of live streams."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import headrace as hr
from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import Plan
from headrace.engines import open_model
from headrace.pipeline.execute import run as execute
from headrace.pipeline.model_slots import ModelSlots
from headrace.pipeline.rung_models import RungModels
from headrace.pipeline.sensors import MemorySensor, Reading, State
from headrace.pipeline.watching import RunInProgress
from headrace.testing import ListSource


def save(path: Path, operator: str) -> str:
    """Write a network of one layer."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


class Net(hr.Module):
    """Calls its model."""

    input = hr.ArrayInput()

    def __init__(self, model: str) -> None:
        self.model = model

    def load(self, context: Any) -> None:
        """Open it."""
        self.net = context.open_model()

    def process(self, batch: Any) -> list[float]:
        """Return the first number of each answer."""
        return [float(row[0]) for row in self.net(np.asarray(batch, np.float32))]


class Numbers(ListSource):
    """Numbers without end to come, which may be thinned; notes each request."""

    def __init__(self, count: int) -> None:
        super().__init__([np.full(4, -1.0, np.float32)] * count)
        self.thinned: list[int] = []

    def thin(self, every: int) -> None:
        """Note it."""
        self.thinned.append(every)


def budget(*ladder: str) -> dict[str, Any]:
    """Return the tables of a Plan with a ladder."""
    return {"budget": {"memory": "100GB", "ladder": list(ladder)}, "stages": {"process": {"workers": 1}}}


def test_a_cheaper_variant_and_fewer_frames_are_rungs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While memory is short the other model answers and the source gives less; then both are as they were."""
    state: list[State] = ["clear"]
    monkeypatch.setattr(MemorySensor, "read", lambda self, now: Reading(state[0], f"it is {state[0]}"))
    monkeypatch.setattr("headrace.base.policies.descent._SETTLE_SECONDS", 0.01)
    monkeypatch.setattr("headrace.base.policies.descent._HOLD_SECONDS", 0.01)
    old, new = save(tmp_path / "old.onnx", "Neg"), save(tmp_path / "new.onnx", "Identity")
    runs: list[RunInProgress] = []

    @contextlib.contextmanager
    def watch(progress: RunInProgress) -> Iterator[None]:
        runs.append(progress)
        yield

    def steer(value: Any) -> Any:
        notes = runs[0].state().notes
        down, up = notes.get("budget.down", 0), notes.get("budget.up", 0)
        state[0] = "over" if down < 2 else "clear"
        if up < 2:  # so that the run lasts until it has been down and up again
            time.sleep(0.1)
        return value

    source = Numbers(400)
    module = Net(old)
    stages = [hr.stage("steer", steer, kind="io"), *module.stages()]
    table = budget(f"model.artifact={new}", "source.every=3")
    table["stages"]["steer"] = {"workers": 1, "executor": "thread"}
    kept = hr.collect()
    result = execute(hr.Pipeline(source, stages=stages, delivery=kept), Plan.from_table(table), watch=watch)
    assert result.budget is not None
    assert [step.rung for step in result.budget.steps[:4]] == [1, 2, 1, 0]
    assert {answer for _, answer in kept.results} == {1.0, -1.0}
    assert kept.results[-1][1] == 1.0
    assert source.thinned[:4] == [1, 3, 1, 1]
    assert {variant["artifact"] for variant in result.variants} == {"old.onnx", "new.onnx"}


def test_a_model_that_cannot_be_used_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, the old one answers, and the way to a good one stays open."""
    old, new = save(tmp_path / "old.onnx", "Neg"), save(tmp_path / "new.onnx", "Identity")
    slots, plan = ModelSlots(), Plan()
    slot = slots.around(open_model(plan.model, old, 1), task="", default=old, threads=1, calls=1)
    models = RungModels(slots, plan)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    bad = plan.with_settings([f"model.artifact={tmp_path / 'bad.onnx'}", "process.batch=2"])
    with caplog.at_level(logging.WARNING):
        in_force = models.hold_to(bad)
    assert in_force == plan.with_settings(["process.batch=2"])  # what spans and steps say ran
    assert "the model stays" in caplog.text
    assert slot.variant["artifact"] == "old.onnx"
    good = plan.with_settings([f"model.artifact={new}"])
    assert models.hold_to(good) == good
    assert slot.variant["artifact"] == "new.onnx"
    models.hold_to(plan)
    assert slot.variant["artifact"] == "old.onnx"


def test_a_rung_whose_model_cannot_be_opened_is_not_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes down with the model that it has, and neither steps nor spans say that the rung's answered."""
    monkeypatch.setattr(MemorySensor, "read", lambda self, now: Reading("over", "it is over"))
    old, bad = save(tmp_path / "old.onnx", "Neg"), save(tmp_path / "bad.onnx", "NoSuchOperator")
    source = Numbers(100)
    module = Net(old)
    stages = [hr.stage("wait", lambda value: time.sleep(0.02) or value, kind="io"), *module.stages()]
    plan = Plan.from_table(budget(f"model.artifact={bad}"))
    result = execute(hr.Pipeline(source, stages=stages, delivery=hr.collect()), plan)
    assert result.budget is not None
    assert [step.rung for step in result.budget.steps] == [1]
    assert all(one.model.artifact != bad for one in result.plans.values())
    assert result.budget.steps[0].plan_id in result.plans


@pytest.mark.parametrize(
    ("ladder", "error", "says"),
    [
        (["model.artifact=missing.onnx"], EngineError, "missing.onnx"),
        (["model.options.precision=bf16"], SettingsError, "with engine onnx.*unknown key 'precision'"),
        (["model.options.provider=cuda"], EngineError, "with engine onnx"),
        (["model.input_side=32"], SettingsError, "while a run"),
        (["model.threads=1", "model.instances=2"], SettingsError, "budget.ladder"),
        (["source.every=1"], SettingsError, "no less"),
        (["source.every=3", "source.every=2"], SettingsError, "no less"),
    ],
)
def test_rungs_that_are_refused(tmp_path: Path, ladder: list[str], error: type[Exception], says: str) -> None:
    """A file that is missing, an option that the engine has not, an input of another size: nothing is received."""
    source = Numbers(3)
    pipeline = hr.Pipeline(source, module=Net(save(tmp_path / "old.onnx", "Neg")))
    with pytest.raises(error, match=says):
        execute(pipeline, Plan.from_table(budget(*ladder)))
    assert source.outcomes == {}


@pytest.mark.parametrize("table", [{"source": {"every": 2}}, budget("source.every=2")])
def test_what_loses_nothing_is_not_thinned(table: dict[str, Any]) -> None:
    """A list gives all it has, so leaving out frames of it is refused, now and on a rung."""
    pipeline = hr.Pipeline(ListSource([b"x"]), stages=[hr.stage("process", list, kind="device")])
    with pytest.raises(SettingsError, match="leaves out nothing"):
        execute(pipeline, Plan.from_table(table))


def test_one_file_in_the_place_of_two_models_is_refused(tmp_path: Path) -> None:
    """A rung names the model of one module, as a Plan does."""
    old, new = save(tmp_path / "old.onnx", "Neg"), save(tmp_path / "new.onnx", "Identity")
    pipeline = hr.Pipeline(ListSource([b"x"]), modules={"a": Net(old), "b": Net(new)})
    with pytest.raises(SettingsError, match="2 models"):
        execute(pipeline, Plan.from_table({"budget": {"memory": "100GB", "ladder": [f"model.artifact={new}"]}}))
