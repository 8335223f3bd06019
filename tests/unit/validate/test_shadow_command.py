"""What `headrace run --shadow` says to do next, and what of it is in the ledger."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import headrace as hr
from headrace.base.errors import LedgerError, SettingsError
from headrace.base.plan import ModelPlan, Plan
from headrace.cli import main
from headrace.cli.shadowing import open_candidate
from headrace.delivery.collect import Collect
from headrace.pipeline.execute import run as execute
from headrace.testing import ListSource

JOBS = """
import json
import numpy as np
import headrace as hr
from headrace.delivery.collect import Collect
from headrace.testing import ListSource

class Model(hr.Module):
    input = hr.ArrayInput()

    def load(self, context):
        self.model_in_use = context.open_model("a.onnx")

    def process(self, batch):
        return [float(value) for value in self.model_in_use(batch)[:, 0]]

items = np.random.default_rng(0).standard_normal((800, 4)).astype(np.float32)
pipeline = hr.Pipeline(ListSource(list(items)), module=Model(), delivery=Collect())
"""


class Nothing(hr.Module):
    """Answers nothing."""

    input = hr.ArrayInput()

    def process(self, batch: Any) -> Sequence[Any]:
        """Return nothing of interest."""
        return [0] * len(batch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline with its model, and one that answers the opposite."""
    weights = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    for name, sign in (("a", 1), ("other", -1)):
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "tiny",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
            [numpy_helper.from_array(sign * weights, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "shadow_jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "seconds", "advice", "next_command"),
    [
        (True, 0.001, "roll back", "headrace ledger rollback plan.toml --why"),
        (False, 0.002, "keep", "headrace validate MODEL 'b c.onnx@onnx,threads=1' --golden GOLDEN.npz"),
        (
            False, 0.001, "promote",
            "headrace run jobs.py:pipeline --plan plan.toml --set p.workers=2 --source in/ --set 'model.artifact=\"b c.onnx\"'",
        ),
    ],
)  # fmt: skip
def test_what_came_of_it_has_a_command_and_is_in_the_ledger(
    folder: Path, capsys: pytest.CaptureFixture[str], changed: bool, seconds: float, advice: str, next_command: str
) -> None:
    """Each advice its own; the attempt can be shown, and not replayed: its traffic is gone."""
    (folder / "other.onnx").rename(folder / "b c.onnx")
    args = argparse.Namespace(results=None,
        shadow="b c.onnx@onnx,threads=1", max_disagreement=0.01, ledger=str(folder / "ledger.sqlite"),
        pipeline="jobs.py:pipeline", plan="plan.toml", settings=["p.workers=2"], allow=[], source="in/", drain=False,
        limit=20,
    )  # fmt: skip
    candidate = open_candidate(args, Plan())
    assert candidate is not None
    scores = np.eye(10, 3, dtype=np.float32)
    for number in range(60):
        candidate.record.add(scores, -scores if changed else scores, 0.0015 + 1e-6 * number, seconds)
    result = execute(hr.Pipeline(ListSource([]), module=Nothing(), delivery=Collect()), Plan())
    found = candidate.document(args, result)
    assert found.advice == advice
    assert str(found.next_command).startswith(next_command)
    assert main(["ledger", "show", found.attempt, "--ledger", args.ledger]) == 0
    assert "answers changed" in " ".join(capsys.readouterr().out.split())
    assert main(["ledger", "replay", found.attempt, "--ledger", args.ledger]) == 2
    assert "does not come again" in capsys.readouterr().err


@pytest.mark.parametrize("table", ["models.scene", "model"])
def test_what_takes_over_is_set_where_the_plan_names_its_model(folder: Path, table: str) -> None:
    """In the task's own table if there is one; the pin and the options of the model in use go with it."""
    args = argparse.Namespace(results=None,
        shadow="other.onnx@onnx,threads=2", max_disagreement=0.01, ledger=None, pipeline="jobs.py:pipeline", plan=None,
        settings=[], allow=[], source=None, drain=False, limit=None,
    )  # fmt: skip
    candidate = open_candidate(args, Plan())
    assert candidate is not None
    scores = np.eye(10, 3, dtype=np.float32)
    for number in range(60):
        candidate.record.add(scores, scores, 0.0015 + 1e-6 * number, 0.001)
    used = {"artifact": "a.onnx", "engine": "openvino", "sha256": 64 * "0", "options": {"precision": "bf16"}}
    plan = Plan.from_table({"models": {"scene": used}} if table == "models.scene" else {"model": used})
    pipeline = hr.Pipeline(ListSource([]), modules={"scene": Nothing()}, delivery=Collect())
    words = shlex.split(str(candidate.document(args, execute(pipeline, plan), "scene").next_command))
    settings = [value for option, value in itertools.pairwise(words) if option == "--set"]
    assert {setting.rpartition(".")[0] for setting in (one.partition("=")[0] for one in settings)} == {table}
    changed = plan.with_settings(settings)
    found = changed.models["scene"] if table == "models.scene" else changed.model
    expected = ModelPlan(artifact="other.onnx", sha256=str(candidate.model.variant["sha256"]), threads=2)
    assert found == expected


def test_too_few_answers_keep_what_is_in_use(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line; nothing is written where no ledger is named."""
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    command = ["run", "shadow_jobs.py:pipeline", "--shadow", "a.onnx", "--limit", "20"]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["shadow"]
    assert (said["advice"], said["attempt"]) == ("keep", "")
    assert said["next_command"] == "headrace validate MODEL a.onnx --golden GOLDEN.npz"
    assert not list(folder.glob("**/ledger.sqlite"))


@pytest.mark.parametrize(
    ("shadow", "ledger", "error"),
    [(None, "new.sqlite", SettingsError), ("a.onnx", ".", LedgerError)],
    ids=["no candidate", "no ledger"],
)
def test_a_ledger_that_could_not_be_written_is_told_before_the_run(
    folder: Path, shadow: str | None, ledger: str, error: type[Exception]
) -> None:
    """Without a candidate there is nothing to keep; a folder is no ledger."""
    with pytest.raises(error, match=r"--shadow MODEL|ledger"):
        open_candidate(argparse.Namespace(shadow=shadow, canary=None, max_disagreement=0.01, ledger=ledger), Plan())
    assert not (folder / "new.sqlite").exists()


@pytest.mark.usefixtures("folder")
def test_a_candidate_for_images_of_another_size_is_refused() -> None:
    """It could answer none of the batches; what can be done instead is said."""
    asked = argparse.Namespace(shadow="a.onnx@onnx,input_side=160", max_disagreement=0.01, ledger=None)
    with pytest.raises(SettingsError, match=r"input_side 160\) .*as the module says.*headrace validate"):
        open_candidate(asked, Plan())


@pytest.mark.usefixtures("folder")
def test_a_candidate_that_does_not_name_the_size_of_the_plan_is_told_how() -> None:
    """Its file may well take such images."""
    asked = argparse.Namespace(shadow="a.onnx", max_disagreement=0.01, ledger=None)
    with pytest.raises(SettingsError, match=r"\(input_side 160\).*MODEL@ENGINE,input_side=N"):
        open_candidate(asked, Plan(model=ModelPlan(input_side=160)))
