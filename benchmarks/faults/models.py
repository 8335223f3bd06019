"""Writes model files that are limited by arithmetic, or by memory; needs the package onnx."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_WIDTH = 256
_COPIES = 64
#: Known to ONNX Runtime since 1.15.
_OPERATORS, _FORMAT = 17, 8


def has_onnx() -> bool:
    """Return whether the package is there."""
    return importlib.util.find_spec("onnx") is not None


def matrix_products(path: Path, *, count: int) -> None:
    """Write a model of matrix products in a row: 77 million operations each for an image of 224 by 224.

    Args:
        path: The file.
        count: Products, >= 1.
    """
    from onnx import helper, numpy_helper

    numbers = np.random.default_rng(0)
    constants = [numpy_helper.from_array(np.array([0, -1, _WIDTH], np.int64), "rows")]
    nodes = [helper.make_node("Reshape", ["images", "rows"], ["x0"])]
    for index in range(count):
        # Of this size, numbers neither grow nor shrink from product to product.
        weights = (numbers.standard_normal((_WIDTH, _WIDTH)) / math.sqrt(_WIDTH)).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{index}"))
        nodes.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"]))
    nodes.append(helper.make_node("ReduceMean", [f"x{count}"], ["answers"], axes=[1, 2], keepdims=0))
    _save(path, nodes, constants)


def passes_over_memory(path: Path, *, count: int) -> None:
    """Write a model of additions and multiplications by one number, over 38 MB for an image of 224 by 224.

    Args:
        path: The file.
        count: Passes, >= 1.
    """
    from onnx import helper, numpy_helper

    constants = [
        numpy_helper.from_array(np.array([1, _COPIES, 1, 1], np.int64), "copies"),
        numpy_helper.from_array(np.array(0.5, np.float32), "half"),
    ]
    nodes = [helper.make_node("Tile", ["images", "copies"], ["x0"])]
    nodes += [
        helper.make_node("Mul" if index % 2 else "Add", [f"x{index}", "half"], [f"x{index + 1}"])
        for index in range(count)
    ]
    nodes.append(helper.make_node("ReduceMean", [f"x{count}"], ["answers"], axes=[1, 2, 3], keepdims=0))
    _save(path, nodes, constants)


def _save(path: Path, nodes: Sequence[Any], constants: Sequence[Any]) -> None:
    import onnx
    from onnx import TensorProto, helper

    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    answers = helper.make_tensor_value_info("answers", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph(list(nodes), "model", [images], [answers], list(constants))
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPERATORS)], ir_version=_FORMAT), str(path)
    )
