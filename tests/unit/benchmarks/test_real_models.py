"""The benchmark on real models: files that are broken on purpose open and answer otherwise, and figures add up.

The packages themselves are not installed here; everything that needs none of them is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from benchmarks.real_models import items
from benchmarks.real_models.__main__ import CaseResult, Command, summed, told, verdict_of
from benchmarks.real_models.planted import plant


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A network that answers with the means of an image's colours, and of two more of no colour."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def answers(path: str | Path, images: np.ndarray) -> np.ndarray:
    """Return (items, classes)."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": images})[0])


def test_every_defect_shows_and_honest_twins_do_not(model: Path, tmp_path: Path) -> None:
    """On photographs, or on the black image or the batch that a defect is about."""
    images = np.random.default_rng(0).random((3, 3, 4, 4)).astype(np.float32)
    whole, planted = answers(model, images), plant(model, tmp_path)
    assert set(planted["broken"]) == {"leak", "swapped", "nothing", "black", "colours", "twice"}
    for name, path in planted["broken"].items():
        if name == "black":
            assert np.allclose(answers(path, images), whole)
            assert np.isnan(answers(path, np.zeros_like(images))).all()
        else:
            assert not np.allclose(answers(path, images), whole), name
    assert np.allclose(answers(planted["broken"]["leak"], images[:1]), whole[:1])
    for path in planted["honest"].values():
        assert np.allclose(answers(path, images), whole)


@pytest.mark.parametrize(
    ("make", "pattern", "reads"),
    [
        (items.crops, "*.png", lambda path: cv2.imread(str(path)).std() > 1),
        (items.pages, "*.png", lambda path: cv2.imread(str(path)).shape == (420, 640, 3)),
        (items.captchas, "*.png", lambda path: cv2.imread(str(path)).shape == (60, 160, 3)),
        (items.sounds, "*.wav", lambda path: len(path.read_bytes()) == 44 + 2 * 32_000),
        (items.documents, "*", lambda path: len(path.read_text()) > 50),
    ],
)
def test_items_are_the_same_each_time(
    make: Callable[[Path, int], None], pattern: str, reads: Callable[[Path], bool], tmp_path: Path
) -> None:
    """From a seed, as many as asked for, and readable."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder, 9)
    files = sorted((tmp_path / "one").glob(pattern))
    assert len(files) == 9
    assert all(reads(file) for file in files)
    assert all(file.read_bytes() == (tmp_path / "two" / file.name).read_bytes() for file in files)


def test_figures_are_summed_over_packages() -> None:
    """What is not ok is told with its last words; what could not be told is no refusal."""
    one = CaseResult(
        "one", ["a"], [Command("run", 0, True, 1.0)], 3, 4, {"x": "reject by parity", "y": "accept"}, {"z": "accept"}
    )
    two = CaseResult(
        "two", ["b", "c"], [Command("run", 1, False, 1.0, "status 1: no")], 4, 4, {"x": "inconclusive"}, {}
    )
    found = summed([one, two])
    assert (found["models"], found["commands_ok"], found["commands"]) == (3, 1, 2)
    assert found["answers_equal"] == 7 / 8
    assert found["planted"] == {"refused": 1, "undecided": 1, "not_accepted": 2, "accepted": 1, "of": 3}
    assert found["honest_refused"] == 0
    assert "- two, run: status 1: no" in told(found)


def test_a_verdict_names_its_gate_or_the_items_that_are_missing() -> None:
    """Undecided for want of items is told with their number."""
    says = "not known: accuracy: drop +0.00 points: undecided, about 1,031 more would decide it"
    assert verdict_of({"verdict": "inconclusive", "says": says, "gates": []}) == "inconclusive: add 1,031 items"
    gates = [{"name": "static", "outcome": "passed"}, {"name": "parity", "outcome": "rejected"}]
    assert verdict_of({"verdict": "reject", "says": "", "gates": gates}) == "reject by parity"
