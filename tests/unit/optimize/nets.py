"""Small convolutional networks as ONNX files, and items that they are sure about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

CHANNELS, CLASSES, SIDE = 16, 5, 12

Weights = dict[str, np.ndarray]


def make_weights(seed: int = 0) -> Weights:
    """Return the weights of a convolution, a depthwise one, a pointwise one and a classifier."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        size = np.prod(shape[1:])
        return (random.standard_normal(shape) * np.sqrt(2.0 / size)).astype(np.float32)

    weights = {
        "stem.w": normal(CHANNELS, 3, 3, 3), "dw.w": normal(CHANNELS, 1, 3, 3), "pw.w": normal(CHANNELS, CHANNELS, 1, 1),
        "fc.w": normal(CHANNELS, CLASSES),
    }  # fmt: skip
    for name in ("stem", "dw", "pw"):
        weights[f"{name}.b"] = (0.1 * random.standard_normal(CHANNELS)).astype(np.float32)
    return weights


def imbalanced(weights: Weights, seed: int = 2) -> Weights:
    """Return weights of the same function whose channels between dw and pw have very different sizes."""
    scale = np.exp(2.0 * np.random.default_rng(seed).standard_normal(CHANNELS)).astype(np.float32)
    changed = dict(weights)
    changed["dw.w"] = weights["dw.w"] * scale[:, None, None, None]
    changed["dw.b"] = weights["dw.b"] * scale
    changed["pw.w"] = weights["pw.w"] / scale[None, :, None, None]
    return changed


def save_net(path: Path, weights: Weights, activation: str = "Relu") -> Path:
    """Write the network as a model file and return its path."""

    def conv(name: str, source: str, **attributes: Any) -> list[Any]:
        made = [helper.make_node("Conv", [source, f"{name}.w", f"{name}.b"], [f"{name}.y"], name=name, **attributes)]
        bounds = ["zero", "six"] if activation == "Clip" else []
        made.append(helper.make_node(activation, [f"{name}.y", *bounds], [f"{name}.a"], name=f"{name}.act"))
        return made

    nodes = [
        *conv("stem", "image", pads=[1, 1, 1, 1]),
        *conv("dw", "stem.a", group=CHANNELS, pads=[1, 1, 1, 1]),
        *conv("pw", "dw.a"),
        helper.make_node("GlobalAveragePool", ["pw.a"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "fc.w"], ["scores"], name="fc"),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    if activation == "Clip":
        constants += [numpy_helper.from_array(np.float32(value), name) for name, value in (("zero", 0.0), ("six", 6.0))]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        constants,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def save_residual(path: Path) -> Path:
    """Write a network of three blocks whose input is added to their output, and return its path."""
    random = np.random.default_rng(0)
    weights, nodes = [], []

    def conv(name: str, source: str, inputs: int) -> str:
        array = random.standard_normal((CHANNELS, inputs, 3, 3)) * np.sqrt(2 / (9 * inputs))
        weights.append(numpy_helper.from_array(array.astype(np.float32), f"{name}.w"))
        nodes.append(helper.make_node("Conv", [source, f"{name}.w"], [f"{name}.y"], name=name, pads=[1, 1, 1, 1]))
        return f"{name}.y"

    def simple(operator: str, sources: list[str], target: str) -> str:
        nodes.append(helper.make_node(operator, sources, [target], name=target))
        return target

    at = simple("Relu", [conv("stem", "image", 3)], "stem.a")
    for block in range(3):
        inner = simple("Relu", [conv(f"{block}.first", at, CHANNELS)], f"{block}.inner")
        total = simple("Add", [conv(f"{block}.second", inner, CHANNELS), at], f"{block}.sum")
        at = simple("Relu", [total], f"{block}.a")
    simple("Flatten", [simple("GlobalAveragePool", [at], "pooled")], "scores")
    graph = helper.make_graph(
        nodes, "residual",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CHANNELS])],
        weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def answers(path: Path, inputs: np.ndarray) -> np.ndarray:
    """Return (items, classes)."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"image": inputs})[0])


def make_items(path: Path, num_items: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs of all classes and their labels: patterns that the network tells apart with a margin."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((8 * num_items, 3, 1, 1)) * 2 + random.standard_normal(
        (8 * num_items, 3, SIDE, SIDE)
    )
    inputs = inputs.astype(np.float32)
    scores = answers(path, inputs)
    ordered = np.sort(scores, axis=1)
    margin = (ordered[:, -1] - ordered[:, -2]) / np.abs(scores).max(axis=1)
    sure = np.argsort(-margin, kind="stable")[:num_items]
    sure = random.permutation(sure)
    return inputs[sure], scores[sure].argmax(axis=1)
