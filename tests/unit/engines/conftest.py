"""Tiny models."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


@pytest.fixture
def weights() -> np.ndarray:
    """What the tiny model multiplies by: float32 (4, 3)."""
    return WEIGHTS


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes x @ weights, and where asked for its greatest index too."""

    def make(*, with_label: bool = False, metadata: dict[str, str] | None = None) -> Path:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["scores"])]
        outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])]
        if with_label:
            nodes.append(helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0))
            outputs.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]))
        graph = helper.make_graph(
            nodes,
            "tiny",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
            outputs,
            [numpy_helper.from_array(WEIGHTS, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(model, metadata or {})
        path = tmp_path / "tiny.onnx"
        onnx.save(model, path)
        return path

    return make


@pytest.fixture
def watch_files() -> Callable[..., Any]:
    """Return `Watch` of `outside.py` beside this file: test folders are not packages, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("outside", Path(__file__).with_name("outside.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    watch: Callable[..., Any] = module.Watch
    return watch
