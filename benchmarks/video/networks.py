"""Ten models whose memory grows with the batch in different ways: {name: what builds one}."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import models
from benchmarks.paths import CACHE
from headrace.samples.catalogue import SCENES_MODEL_PATH

Built = tuple[Path, tuple[int, ...], tuple[str, ...]]
"""The file, the shape of an item, and settings of the Plan."""

_ONNX = ("model.threads=1",)
_OPENVINO = (*_ONNX, "model.engine=openvino")
_PICTURE = (3, 224, 224)


class _Network:
    """Nodes and random weights, one node after the other."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.last = "image"
        self._random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        values = self._random.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:]) or 1))
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator: str, *more: str, source: str | None = None, **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, [source or self.last, *more], [output], **attributes))
        self.last = output
        return output

    def convolution(self, before: int, after: int, stride: int = 1) -> None:
        self.add("Conv", self.weight(after, before, 3, 3), strides=[stride, stride], pads=[1, 1, 1, 1])
        self.add("Relu")

    def save(self, name: str, shape: tuple[int, ...]) -> Path:
        path = CACHE / f"memory-{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        given = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *shape])
        made = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, name, [given], [made], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
        return path


def _wide() -> Built:
    network = _Network()
    for before, after, stride in ((3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        network.convolution(before, after, stride)
    network.add("GlobalAveragePool")
    return network.save("wide", _PICTURE), _PICTURE, _ONNX


def _deep() -> Built:
    network = _Network()
    network.convolution(3, 16)
    for _ in range(20):
        network.convolution(16, 16)
    network.add("GlobalAveragePool")
    return network.save("deep", _PICTURE), _PICTURE, _ONNX


def _dense() -> Built:
    network = _Network()
    network.add("Flatten")
    for before, after in ((3 * 64 * 64, 3000), (3000, 3000), (3000, 10)):
        network.add("MatMul", network.weight(before, after))
        network.add("Relu")
    return network.save("dense", (3, 64, 64)), (3, 64, 64), _ONNX


def _masks() -> Built:
    network = _Network()
    for before, after in ((3, 32), (32, 64), (64, 128)):
        network.convolution(before, after, 2)
    network.convolution(128, 21)
    network.weights.append(numpy_helper.from_array(np.array([1, 1, 8, 8], np.float32), "scales"))
    network.add("Resize", "", "scales", mode="linear")
    network.add("Softmax", axis=1)
    return network.save("masks", _PICTURE), _PICTURE, _ONNX


def _attention() -> Built:
    network, tokens, width = _Network(), 784, 192
    for _ in range(3):
        before = network.last
        query, key, value = (network.add("MatMul", network.weight(width, width), source=before) for _ in range(3))
        turned = network.add("Transpose", source=key, perm=[0, 2, 1])
        network.add("MatMul", turned, source=query)
        network.add("Softmax", axis=-1)
        network.add("MatMul", value)
    return network.save("attention", (tokens, width)), (tokens, width), _ONNX


MODELS: dict[str, Callable[[], Built]] = {
    "MobileNetV2": lambda: (models.build(), _PICTURE, _ONNX),
    "MobileNetV2, OpenVINO": lambda: (models.build(), _PICTURE, _OPENVINO),
    "MobileNetV2, OpenVINO bfloat16": lambda: (models.build(), _PICTURE, (*_OPENVINO, "model.options.precision=bf16")),
    "scenes": lambda: (SCENES_MODEL_PATH, _PICTURE, _ONNX),
    "scenes, OpenVINO": lambda: (SCENES_MODEL_PATH, _PICTURE, _OPENVINO),
    "wide convolutions": _wide,
    "deep, narrow convolutions": _deep,
    "dense layers": _dense,
    "masks in full size": _masks,
    "attention over 784 tokens": _attention,
}
