"""The model changes under a running pipeline: accepted, rolled back or refused, and no job is lost or done twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.cli.run import as_dict
from headrace.delivery.collect import Collect
from headrace.ledger.ledger import Ledger
from headrace.pipeline import following
from headrace.pipeline.execute import Result, run
from headrace.pipeline.following import Following
from headrace.runs.reader import read_run
from headrace.testing import ListSource
from headrace.validate.switching import explain_no_switch

ITEMS = 4000
FACTOR, OTHER, FAR = 1.0, 1.001, 3.0


class Scaled(hr.Module):
    """Multiplies by what its model holds."""

    input = hr.ArrayInput()
    output = hr.Numbers()

    def __init__(self, model: Path) -> None:
        self.model = model

    def load(self, context: Any) -> None:
        """Open the model."""
        self.scale = context.open_model()

    def process(self, batch: np.ndarray) -> Sequence[float]:
        """Return the products, slowly enough for a few looks at the file."""
        time.sleep(0.002)
        return [float(value) for value in self.scale(batch)[:, 0]]


class Acting(Collect):
    """Does something after so many deliveries."""

    def __init__(self, actions: dict[int, Callable[[], object]]) -> None:
        super().__init__()
        self._actions = actions

    def deliver(self, job: Any, result: Any) -> bool:
        """Keep one result."""
        super().deliver(job, result)
        if action := self._actions.get(len(self.results)):
            action()
        return True


def wait_until_said(said: list[str], number: int) -> Callable[[], None]:
    """Return what holds the delivery up until so much was said: a run is not over before somebody has looked at the file."""

    def wait() -> None:
        give_up_at = time.monotonic() + 60
        while len(said) < number and time.monotonic() < give_up_at:
            time.sleep(0.01)

    return wait


def save(path: Path, factor: float) -> Path:
    """Write a model that multiplies by a factor."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])], "scale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.float32(factor), "factor")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at often."""
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.02)


def followed(
    folder: Path,
    actions: dict[int, Callable[[], object]],
    said: list[str],
    plan: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> tuple[Result, list[tuple[str, float]]]:
    """Run with a Plan's file that is followed; return what was delivered too."""
    module = Scaled(save(folder / "a.onnx", FACTOR))
    delivery = Acting(actions)
    source = ListSource([np.float32([number + 1]) for number in range(ITEMS)])
    pipeline = hr.Pipeline(source, module=module, delivery=delivery)
    follow = Following(file=folder / "plan.toml", judge=explain_no_switch, settings=settings, say=said.append)
    written = ["process.batch=4", *plan, *settings]
    result = run(pipeline, Plan().with_settings(written), output=folder / "run", beside=follow)
    return result, delivery.results


def factors(results: Sequence[tuple[str, float]]) -> np.ndarray:
    """Return by what each job was multiplied, in the order of delivery."""
    return np.array([value / (int(id_) + 1) for id_, value in results])


@pytest.mark.smoke
def test_an_accepted_model_takes_over_and_a_rollback_takes_it_back(tmp_path: Path) -> None:
    """Under load: every job is delivered once, by the old model, the new one and the old one again."""
    said: list[str] = []
    save(tmp_path / "b.onnx", OTHER)
    text = f'[model]\nartifact = "{tmp_path / "b.onnx"}"\n'
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        plan = tmp_path / "plan.toml"
        actions: dict[int, Callable[[], object]] = {
            400: lambda: ledger.attempts.accept(plan, text, why="a test"),
            1200: wait_until_said(said, 1),
            2200: lambda: ledger.attempts.rollback(plan),
            3200: wait_until_said(said, 3),
        }
        result, results = followed(tmp_path, actions, said)
    assert sorted(int(id_) for id_, _ in results) == list(range(ITEMS))
    is_other = np.isclose(factors(results), OTHER, rtol=1e-5)
    assert np.isclose(factors(results)[~is_other], FACTOR, rtol=1e-5).all()
    where = np.flatnonzero(is_other)
    assert len(where)
    assert where[0] > 400
    assert where[-1] < ITEMS - 1
    assert where[-1] - where[0] < len(where) + 16  # one stretch, but for batches that overlap
    assert ["switched to" in line for line in said] == [True, False, True]  # between them: the file is gone
    assert result.counters.delivered == ITEMS
    assert [variant["artifact"] for variant in result.variants] == ["a.onnx", "b.onnx"]


def test_the_way_back_from_a_wrong_model_is_open(tmp_path: Path) -> None:
    """A model that answers far off came in before anybody knew; the rollback takes it out, however far off it is."""
    said: list[str] = []
    plan = tmp_path / "plan.toml"
    text = f'[model]\nartifact = "{save(tmp_path / "far.onnx", FAR)}"\n'
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.attempts.accept(plan, text, why="a test")
        actions: dict[int, Callable[[], object]] = {
            600: lambda: ledger.attempts.rollback(plan),
            2000: wait_until_said(said, 2),
        }
        _, results = followed(tmp_path, actions, said, plan=[f'model.artifact="{tmp_path / "far.onnx"}"'])
    assert len(results) == ITEMS
    assert factors(results)[0] == pytest.approx(FAR)
    assert factors(results)[-1] == pytest.approx(FACTOR)
    assert "switched to a.onnx" in said[-1]


def test_spans_say_which_plan_was_in_force(tmp_path: Path) -> None:
    """And the run folder holds both Plans."""
    said: list[str] = []
    save(tmp_path / "b.onnx", OTHER)
    text = f'[model]\nartifact = "{tmp_path / "b.onnx"}"\n'
    write = {400: lambda: (tmp_path / "plan.toml").write_text(text), 2000: wait_until_said(said, 1)}
    followed(tmp_path, write, said)
    info = read_run(tmp_path / "run").info
    assert len(info.plans) == 2
    assert any(table["model"].get("artifact") for table in info.plans.values())


def test_settings_of_the_command_line_outlive_a_switch(tmp_path: Path) -> None:
    """`--set model.threads=1` holds for every Plan that comes, and the result names all that were in force."""
    said: list[str] = []
    save(tmp_path / "b.onnx", OTHER)
    text = f'[model]\nartifact = "{tmp_path / "b.onnx"}"\nthreads = 2\n'
    write = {400: lambda: (tmp_path / "plan.toml").write_text(text), 2000: wait_until_said(said, 1)}
    result, _ = followed(tmp_path, write, said, settings=["model.threads=1"])
    first, second = result.plans.values()
    assert (first.model.artifact, second.model.artifact) == (None, str(tmp_path / "b.onnx"))
    assert first.model.threads == second.model.threads == 1
    assert list(as_dict(result)["plans"]) == list(result.plans)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[model]\nartifact = "{folder}/far.onnx"\n', "not what was validated"),
        ('[model]\nartifact = "{folder}/missing.onnx"\n', "does not exist"),
        ('[model]\nartifact = "{folder}/wide.onnx"\n', "refuses a batch"),
        ("[model\n", "the model stays"),
        ("[run]\nordered = true\n", "start again"),
    ],
)
def test_a_model_that_is_no_good_changes_nothing(tmp_path: Path, text: str, expected: str) -> None:
    """Far off, missing, of another shape, no TOML, or not about the model: it is said once, and all goes on."""
    said: list[str] = []
    save(tmp_path / "far.onnx", FAR)
    wide = onnx.load(str(save(tmp_path / "wide.onnx", OTHER)))
    wide.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
    wide.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    onnx.save(wide, tmp_path / "wide.onnx")
    written = text.replace("{folder}", str(tmp_path))
    write = {200: lambda: (tmp_path / "plan.toml").write_text(written), 2000: wait_until_said(said, 1)}
    result, results = followed(tmp_path, write, said)
    assert result.counters.delivered == ITEMS
    assert np.isclose(factors(results), FACTOR, rtol=1e-5).all()
    assert len(said) == 1
    assert expected in said[0]


def test_a_model_in_another_process_cannot_be_followed(tmp_path: Path) -> None:
    """It is said before anything runs."""
    with pytest.raises(SettingsError, match="--follow"):
        followed(tmp_path, {}, [], plan=["process.executor='process'"])
