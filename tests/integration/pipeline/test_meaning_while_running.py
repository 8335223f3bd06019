"""A detector that finds nothing any more, and one whose classes are exchanged, on live traffic: neither is taken."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.cli import main

CLASSES, ANCHORS = 3, 60
#: Items are raw heads of a detector: the model hands them on, scaled and in an order.
JOBS = """
import time
from pathlib import Path
import numpy as np
import headrace as hr
from headrace.delivery.collect import Collect
from headrace.testing import ListSource

class Detector(hr.Module):
    input = hr.ArrayInput()
    model = "a.onnx"

    def load(self, context):
        self.net = context.open_model()

    def process(self, batch):
        time.sleep(0.002)
        return [float(head[4:].max()) for head in self.net(batch)]

class Changing(Collect):
    def deliver(self, job, result):
        super().deliver(job, result)
        plan = Path("plan.toml")
        if len(self.results) == 400:
            plan.write_text('[model]\\nartifact = "bad.onnx"\\n')
        if len(self.results) == 1600:
            time.sleep(2.5)  # at least two looks at the file
        return True

random = np.random.default_rng(0)
items = random.uniform(0, 0.01, (2400, 7, 60)).astype(np.float32)
items[:, :2] = random.uniform(0, 300, (2400, 2, 60))
items[:, 2:4] = random.uniform(20, 60, (2400, 2, 60))
items[np.arange(2400), 4 + np.arange(2400) % 3, np.arange(2400) % 60] = 0.9
pipeline = hr.Pipeline(ListSource(list(items)), module=Detector(), delivery=Changing())
"""


def save(path: Path, scale: float, order: list[int]) -> None:
    """Write a model that scales the scores of classes and puts rows in an order."""
    factors = np.ones((1, 4 + CLASSES, 1), np.float32)
    factors[:, 4:] = scale
    shape = ["batch", 4 + CLASSES, ANCHORS]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factors"], ["s"]), helper.make_node("Gather", ["s", "order"], ["y"], axis=1)], "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(factors, "factors"), numpy_helper.from_array(np.array(order), "order")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pipeline and the model in use."""
    (tmp_path / "meaning_jobs.py").write_text(JOBS)
    (tmp_path / "plan.toml").write_text('[model]\nartifact = "a.onnx"\n')
    save(tmp_path / "a.onnx", 1.0, list(range(4 + CLASSES)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "meaning_jobs", raising=False)  # that of another folder
    return tmp_path


@pytest.mark.parametrize(("scale", "order"), [(0.0, [0, 1, 2, 3, 4, 5, 6]), (1.0, [0, 1, 2, 3, 5, 4, 6])])
def test_a_plan_that_is_followed_does_not_bring_it_in(
    folder: Path, capsys: pytest.CaptureFixture[str], scale: float, order: list[int]
) -> None:
    """All jobs are answered by the model in use, and it is said why."""
    save(folder / "bad.onnx", scale, order)
    command = [
        "run",
        "meaning_jobs.py:pipeline",
        "--plan",
        "plan.toml",
        "--follow",
        "--json",
        "--set",
        "process.batch=4",
    ]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "the model stays" in said.err
    assert "other detections" in said.err
    assert [variant["artifact"] for variant in json.loads(said.out)["variants"]] == ["a.onnx"]


def test_a_shadow_is_not_promoted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its detections are other ones: roll back."""
    save(folder / "bad.onnx", 0.0, list(range(4 + CLASSES)))
    command = ["run", "meaning_jobs.py:pipeline", "--shadow", "bad.onnx", "--json", "--set", "process.batch=4"]
    assert main(command) == 0
    shadow = json.loads(capsys.readouterr().out)["shadow"]
    assert shadow["advice"] == "roll back"
    assert "detections" in shadow["says"]
