"""Equalization changes weights and nothing that is computed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from headrace.optimize.equalization import equalize, num_pairs


def ranges(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of the channels between the depthwise and the pointwise convolution, on either side."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}
    first, second = weights["dw.w"], weights["pw.w"]
    return np.abs(first).max(axis=(1, 2, 3)), np.abs(second).max(axis=(0, 2, 3))


def test_the_function_stays_and_the_ranges_meet(twin: Any, nets: ModuleType, tmp_path: Path) -> None:
    """The channels of neighbours have one range on both sides, and the answers are those of before to rounding."""
    output = tmp_path / "equalized.onnx"
    assert equalize(twin.model, output) == {"pairs": 2, "rounds": 20}
    before, after = nets.answers(twin.model, twin.inputs), nets.answers(output, twin.inputs)
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 * np.abs(before).max())
    spread = np.log(ranges(twin.model)[0]).std()
    first, second = ranges(output)
    np.testing.assert_allclose(first, second, rtol=1e-2)
    assert np.log(first).std() < spread / 2


def test_a_bounded_activation_is_left_alone(nets: ModuleType, tmp_path: Path) -> None:
    """ReLU6 cuts off at 6, which scaling would move."""
    assert num_pairs(nets.save_net(tmp_path / "net.onnx", nets.make_weights(), activation="Clip")) == 0


@pytest.mark.parametrize("change", ["shared", "also an output"])
def test_what_something_else_takes_too_is_left_alone(nets: ModuleType, tmp_path: Path, change: str) -> None:
    """Weights of two nodes, and tensors that leave the model, must stay as they are."""
    model = onnx.load(str(nets.save_net(tmp_path / "net.onnx", nets.make_weights())))
    if change == "shared":
        other = onnx.helper.make_node("Identity", ["pw.w"], ["copy"], name="copy")
        model.graph.node.append(other)
        model.graph.output.append(onnx.helper.make_tensor_value_info("copy", onnx.TensorProto.FLOAT, None))
    else:
        model.graph.output.append(onnx.helper.make_tensor_value_info("dw.a", onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "changed.onnx")
    assert num_pairs(tmp_path / "changed.onnx") == 1
