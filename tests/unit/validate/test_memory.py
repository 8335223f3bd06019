"""What memory a variant needs, seen from a process of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.plan import ModelPlan
from headrace.validate.memory import measure_memory
from headrace.validate.variant_spec import VariantSpec

_ROWS = 4_000_000  # 64 MB of weights


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of 64 MB that multiplies."""
    weights = numpy_helper.from_array(np.ones((4, _ROWS), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("ReduceMax", ["y"], ["z"], axes=[1])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 1])],
        [weights],
    )
    file = tmp_path_factory.mktemp("models") / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
    return file


@pytest.mark.full
def test_weights_and_what_is_computed_count(large: Path) -> None:
    """64 MB of weights and 64 MB of a product at the least; not the memory of this process, and far from a gigabyte."""
    batch = np.ones((4, 4), np.float32)
    held = np.ones(50_000_000)  # 400 MB here have nothing to do with it
    found = measure_memory(VariantSpec("", ModelPlan(artifact=str(large), engine="onnx", threads=1)), batch)
    assert found is not None
    assert 128e6 <= found < 600e6
    assert held[0] == 1


def test_what_does_not_open_alone_has_no_figure(tmp_path: Path) -> None:
    """A file that is none, and the torch engine, whose networks are registered elsewhere: None, and no error."""
    broken = tmp_path / "broken.onnx"
    broken.write_text("no model")
    batch = np.ones((1, 4), np.float32)
    assert measure_memory(VariantSpec("", ModelPlan(artifact=str(broken), threads=1)), batch) is None
    assert measure_memory(VariantSpec("", ModelPlan(artifact=str(broken), engine="torch", threads=1)), batch) is None
