"""Smaller inputs and other models: what is made of them, and why not."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import EngineError
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.goal import Goal
from headrace.optimize.search import optimize
from headrace.optimize.smaller import shrink


def answers(path: Path, inputs: np.ndarray) -> np.ndarray:
    """Return what a model says."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: inputs})[0])


def test_a_smaller_input_is_made_inside_the_model(case: Any, tmp_path: Path) -> None:
    """The input stays as it was; inside there are fewer pixels, and a flat image is answered as before but for its edges."""
    assert shrink(case.model, 8, case.inputs[0], tmp_path / "small.onnx") == {"input": 8, "of": 12}
    model = onnx.load(tmp_path / "small.onnx")
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:] == [3, 12, 12]
    assert model.graph.node[0].op_type == "Resize"
    value = model.graph.output.add()
    value.name = "stem.y"
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    _, inner = session.run(None, {"image": case.inputs[:2]})
    assert inner.shape[2:] == (8, 8)
    assert answers(tmp_path / "small.onnx", case.inputs[:3]).shape == answers(case.model, case.inputs[:3]).shape


def fixed(path: Path, nets: ModuleType) -> Path:
    """Write a model that flattens its image without pooling: it needs the size that it has."""
    weights = np.ones((3 * nets.SIDE * nets.SIDE, 4), np.float32)
    nodes = [helper.make_node("Flatten", ["image"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["scores"])]
    graph = helper.make_graph(
        nodes, "fixed",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, nets.SIDE, nets.SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_model_that_needs_its_size_says_so(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """And what to do instead."""
    path = fixed(tmp_path / "fixed.onnx", nets)
    with pytest.raises(EngineError, match="not fully convolutional"):
        shrink(path, 8, case.inputs[0], tmp_path / "small.onnx")


@pytest.mark.slow
@pytest.mark.usefixtures("speeds")
def test_they_go_the_way_of_every_candidate(case: Any, nets: ModuleType, tmp_path: Path) -> None:
    """Judged by the golden set and not by parity; what cannot be is told; int8 is made of them too."""
    other = nets.save_net(tmp_path / "other.onnx", nets.make_weights(seed=5))
    goal = Goal(max_drop=0.02, batch=8, input_sizes=(8, 40), also=(other, tmp_path / "gone.onnx"))
    document = optimize(
        case.model, store=ArtifactStore(tmp_path / "artifacts"), goal=goal, calibration=case.calibration,
        golden=case.golden,
    )  # fmt: skip
    tried = {attempt.technique: attempt for attempt in document.attempts if attempt.settings["engine"] == "onnx"}
    assert {"input-8", "input-8-int8", "also-other", "also-other-int8"} <= set(tried)
    # Random weights of another seed: faster, and hardly ever right; asked about where it is fastest.
    wrong = next(one for one in document.attempts if one.technique == "also-other-int8" and one.drop is not None)
    assert (wrong.verdict, wrong.gate, wrong.settings["engine"]) == ("reject", "accuracy", "openvino")
    assert "the same file was not accepted on openvino" in tried["also-other-int8"].says
    assert "int8 on openvino is accepted and as fast" in tried["input-8-int8"].says
    assert tried["input-8"].artifact.parameters["input"] == 8
    skipped = {one.technique: one.why for one in document.skipped}
    assert "8 to 11" in skipped["input-40"]
    assert "does not exist" in skipped["also-gone"]
