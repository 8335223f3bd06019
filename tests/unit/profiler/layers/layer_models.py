"""ONNX graphs of known size; weights are small random numbers, or zeros where only shapes count."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """Return a node named as its first output."""
    return helper.make_node(operator, inputs, outputs, name=outputs[0], **attributes)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: dict[str, np.ndarray],
    **kinds: Any,
) -> Path:
    """Write a model; inputs and outputs are float32 unless `kinds` says otherwise."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kinds.get(name, FLOAT), None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def small_network(path: Path, *, batch: int | str = "n") -> Path:
    """Write convolution, ReLU, pooling and classifier for images of 3 x 32 x 32; operations in `small_network_flops`."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["image", "w"], ["conv"], kernel_shape=[3, 3], pads=[1] * 4),
        node("Relu", ["conv"], ["relu"]),
        node("MaxPool", ["relu"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["pool"], ["flat"]),
        node("Gemm", ["flat", "v"], ["logits"]),
    ]
    weights = {
        "w": rng.standard_normal((16, 3, 3, 3), np.float32),
        "v": rng.standard_normal((16 * 256, 10), np.float32),
    }
    return save(path, nodes, {"image": (batch, 3, 32, 32)}, ["logits"], weights)


def small_network_flops(batch_size: int, *, relu: bool) -> float:
    """Return its operations by hand; the ReLU counts only where it stands alone."""
    convolution = 2 * 16 * 32 * 32 * 27
    pool = 4 * 16 * 16 * 16
    return batch_size * (convolution + pool + 2 * 16 * 256 * 10 + (16 * 32 * 32 if relu else 0))


class _Classifier:
    """Collects the layers of a network for images of 224 x 224."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def conv(self, x: str, ins: int, outs: int, size: int, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution with bias."""
        name = f"conv{len(self.nodes)}"
        self.weights[f"{name}.w"] = np.zeros((outs, ins // groups, size, size), np.float32)
        self.weights[f"{name}.b"] = np.zeros(outs, np.float32)
        inputs, pads = [x, f"{name}.w", f"{name}.b"], [size // 2] * 4
        return self.node("Conv", inputs, kernel_shape=[size] * 2, strides=[stride] * 2, pads=pads, group=groups)

    def node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def relu(self, x: str) -> str:
        """Add a ReLU."""
        return self.node("Relu", [x])

    def save(self, path: Path, x: str, channels: int) -> Path:
        """Add pooling and classifier and write the model."""
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x])])
        self.weights["classifier"] = np.zeros((channels, 1000), np.float32)
        logits = self.node("Gemm", [flat, "classifier"])
        return save(path, self.nodes, {"image": ("n", 3, 224, 224)}, [logits], self.weights)


def resnet50(path: Path) -> Path:
    """Write a ResNet-50, version 1.5 (stride in the 3 x 3): 4.09 thousand million multiply-adds an image.

    References:
        He et al., Deep Residual Learning for Image Recognition, 2016; torchvision's `resnet50` states 4.09 GFLOPS.
    """
    net = _Classifier()
    x = net.node(
        "MaxPool", [net.relu(net.conv("image", 3, 64, 7, 2))], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    )
    ins = 64
    for width, repeats, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            y = net.relu(net.conv(x, ins, width, 1))
            y = net.conv(net.relu(net.conv(y, width, width, 3, stride)), width, 4 * width, 1)
            shortcut = net.conv(x, ins, 4 * width, 1, stride) if repeat == 0 else x
            x, ins = net.relu(net.node("Add", [y, shortcut])), 4 * width
    return net.save(path, x, ins)


def mobilenet_v2(path: Path) -> Path:
    """Write a MobileNetV2: 300 million multiply-adds an image.

    References:
        Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018, tables 2 and 4.
    """
    net = _Classifier()
    x, ins = net.relu(net.conv("image", 3, 32, 3, 2)), 32
    for expansion, outs, repeats, first_stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for repeat in range(repeats):
            stride, width = (first_stride if repeat == 0 else 1), ins * expansion
            y = net.relu(net.conv(x, ins, width, 1)) if expansion > 1 else x
            y = net.conv(net.relu(net.conv(y, width, width, 3, stride, groups=width)), width, outs, 1)
            x, ins = (net.node("Add", [y, x]) if stride == 1 and ins == outs else y), outs
    return net.save(path, net.relu(net.conv(x, ins, 1280, 1)), 1280)


def loop(path: Path, *, rounds: int, side: int) -> Path:
    """Write a model that multiplies its input, (side, side), with a matrix again and again."""
    body = helper.make_graph(
        [
            node("Identity", ["more"], ["more_out"]),
            node("MatMul", ["x_in", "w"], ["x_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x_in", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("more_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x_out", FLOAT, None),
        ],
    )
    weights = {
        "rounds": np.array(rounds, np.int64),
        "true": np.array(True),
        "w": np.full((side, side), 1 / side, np.float32),
    }
    nodes = [node("Loop", ["rounds", "true", "x"], ["y"], body=body)]
    return save(path, nodes, {"x": ("n", side)}, ["y"], weights)
