"""Noise of a type and size that a model takes, and what is tried where nobody knows the size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import SettingsError
from headrace.base.plan import ModelPlan
from headrace.engines import open_model
from headrace.validate.policy import Policy
from headrace.validate.synthetic_inputs import SyntheticInputs, make_up
from headrace.validate.trials import try_calls
from headrace.validate.variant_spec import parse_variant
from headrace.validate.variants import validate_variants

Input = tuple[str, int, list[Any]]
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return what writes a network of these inputs, nodes and constants, whose output is `y`."""

    def write(inputs: list[Input], nodes: list[Any], constants: dict[str, Any] | None = None, **metadata: str) -> Path:
        graph = helper.make_graph(
            nodes, "net", [helper.make_tensor_value_info(*one) for one in inputs],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(model, metadata)
        path = tmp_path / "net.onnx"
        onnx.save(model, str(path))
        return path

    return write


def made(path: Path, engine: str = "onnx", **given: Any) -> SyntheticInputs:
    """Return what is made up for a file."""
    plan = ModelPlan(artifact=str(path), engine=engine, threads=1)
    model = open_model(plan, None, 1)
    return make_up(plan, model.inputs, model.metadata, **given)


def pyramid(save: Save, **metadata: str) -> Path:
    """Write a network of free height and width that halves an image and lays it beside its halves: 32 must divide both."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[32, 32], strides=[32, 32]),
        helper.make_node("Resize", ["half", "", "scales"], ["whole"], mode="nearest"),
        helper.make_node("Concat", ["x", "whole"], ["both"], axis=1),
        helper.make_node("GlobalAveragePool", ["both"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["y"]),
    ]
    shape = ["batch", 3, "height", "width"]
    return save([("x", TensorProto.FLOAT, shape)], nodes, {"scales": np.float32([1, 1, 32, 32])}, **metadata)


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_free_height_and_width_become_a_size_that_is_answered(save: Save, engine: str) -> None:
    """Not 1, with which a detector fails on one engine and answers nothing on another."""
    noise = made(pyramid(save), engine)
    assert noise.is_guessed
    assert noise.feed(2)["x"].shape == (2, 3, 224, 224)


def test_the_size_in_the_metadata_comes_first(save: Save) -> None:
    """As Ultralytics writes it; what is no size is passed by."""
    assert made(pyramid(save, imgsz="[64, 96]")).feed(1)["x"].shape == (1, 3, 64, 96)
    assert made(pyramid(save, imgsz="[0, 'a']")).feed(1)["x"].shape == (1, 3, 224, 224)


def test_lengths_that_somebody_knows_are_taken(save: Save) -> None:
    """Of the pipeline or of another variant, where the file leaves them open; what the file fixes stays."""
    noise = made(pyramid(save), known=[{"x": ("batch", 1, 32, "?")}, {"x": (1, 3, 64, 96)}])
    assert noise.feed(1)["x"].shape == (1, 3, 32, 96)


def test_indices_stay_within_their_table(save: Save) -> None:
    """Whole numbers may be indices: where larger ones are refused, small ones are taken."""
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    path = save([("x", TensorProto.INT32, ["batch", 7])], nodes, {"table": np.ones((5, 2), np.float32)})
    noise = made(path)
    assert noise.feed(3)["x"].shape == (3, 7)
    assert noise.feed(3)["x"].max() == 1


def test_a_state_and_a_sampling_rate_are_made_up(save: Save) -> None:
    """Of a speech model: sound, a state whose second axis is the batch, and a scalar that is known by its name."""
    nodes = [
        helper.make_node("ReduceMean", ["sound"], ["loud"], axes=[1], keepdims=1),
        helper.make_node("ReduceMean", ["state"], ["before"], axes=[0, 2], keepdims=0),
        helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["before", "one"], ["column"]),
        helper.make_node("Add", ["loud", "column"], ["sum"]),
        helper.make_node("Mul", ["sum", "rate"], ["y"]),
    ]
    inputs: list[Input] = [
        ("sound", TensorProto.FLOAT, ["batch", "samples"]), ("state", TensorProto.FLOAT, [2, "batch", 4]),
        ("sr", TensorProto.INT64, []),
    ]  # fmt: skip
    feed = made(save(inputs, nodes, {"one": np.int64([1])})).feed(3)
    assert (feed["sound"].shape[0], feed["state"].shape, feed["sr"]) == (3, (2, 3, 4), 16000)


def test_what_nothing_fits_is_told(save: Save) -> None:
    """With what was tried and what to give."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    path = save([("x", TensorProto.FLOAT, ["batch", "n"])], nodes, {"shape": np.int64([7, 11, 13])})
    with pytest.raises(SettingsError, match=r"none of 10 made-up inputs was answered .* give --golden"):
        made(path)
    text = save([("x", TensorProto.STRING, ["batch"])], [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)])
    with pytest.raises(SettingsError, match="nothing sensible can be made up; give --golden"):
        made(text)


@pytest.mark.full
def test_a_model_of_free_size_is_not_rejected_for_it(save: Save) -> None:
    """The same file on two engines, without a golden set: noise of size 1 said that one of them was broken."""
    path = pyramid(save)
    found = validate_variants(parse_variant(str(path)), parse_variant(f"{path}@openvino"), None, Policy())
    assert [gate.outcome for gate in found.gates[:2]] == ["passed", "passed"]
    assert found.verdict == "inconclusive"


@pytest.mark.full
def test_noise_has_the_size_that_the_pipeline_prepares(save: Save) -> None:
    """Where it is known, nothing is guessed."""
    path = pyramid(save)
    b = parse_variant(f"{path}@openvino")
    found = validate_variants(parse_variant(str(path)), b, None, Policy(), prepared=(3, 96, 64))
    assert found.gates[0].outcome == "passed"


CRASH = """
import os, signal
import headrace.engines.onnx_engine as engine

answer = engine.OnnxModel.__call__

def call(self, batch):
    if batch["x"].shape[-1] == 320:
        os.kill(os.getpid(), signal.SIGSEGV)
    return answer(self, batch)

engine.OnnxModel.__call__ = call
"""


@pytest.fixture
def crashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every Python process that is started end by a signal where an image is 320 pixels wide."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CRASH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")


@pytest.mark.usefixtures("crashing")
def test_a_crash_is_a_finding_and_the_next_call_is_made(save: Save) -> None:
    """In another process; the signal is named, and this process goes on."""
    plan = ModelPlan(artifact=str(pyramid(save)), threads=1)
    sizes = (64, 320, 96)
    tried = try_calls(plan, [{"x": np.zeros((1, 3, 64, size), np.float32)} for size in sizes])
    assert [trial.ended for trial in tried.calls] == [False, True, False]
    assert tried.calls[1].why == "the process ended by SIGSEGV"
    assert tried.calls[2].shapes == {"": [1, 6]}


@pytest.mark.usefixtures("crashing")
def test_a_variant_that_crashes_is_rejected_and_does_not_take_us_along(save: Save) -> None:
    """On noise whose size is a guess, B is called elsewhere first."""
    path = pyramid(save)
    a = parse_variant(f"{path}@openvino")
    found = validate_variants(a, parse_variant(str(path)), None, Policy(), prepared=(3, 64, 320))
    assert found.verdict == "reject"
    assert "B was called with noise" in found.says
    assert "SIGSEGV" in found.says
