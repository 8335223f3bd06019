"""The layers of the recommended variant, for a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace.optimize.layers_of_choice import with_layers
from headrace.runs.formats.optimization import Artifact, Attempt, OptimizationDocument
from headrace.runs.formats.variants import ValidationDocument, VariantSide

WEIGHTS = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def save(path: Path, weights: np.ndarray) -> Artifact:
    """Write a network of two layers, with a tensor between them."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["between"]), helper.make_node("Relu", ["between"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return Artifact(sha256=path.name, file=str(path), num_bytes=path.stat().st_size)


def test_layers_are_held_against_the_model_as_given(tmp_path: Path) -> None:
    """And not against what a Plan uses, which may be far off itself: the page says so."""
    given, used, chosen = (
        save(tmp_path / f"{name}.onnx", weights)
        for name, weights in (("given", WEIGHTS), ("used", -WEIGHTS), ("chosen", 1.01 * WEIGHTS))
    )
    sides = [VariantSide(name=f"{one.file}@onnx,threads=1", variant={}, open_seconds=0.0) for one in (used, chosen)]
    attempt = Attempt(
        model=given.sha256, technique="folded", kind="lossless", hypothesis="", candidate="chosen", verdict="accept", says="",
        settings={"artifact": chosen.file, "engine": "onnx", "threads": 1}, artifact=chosen, seconds=1.0,
        validation=ValidationDocument(a=sides[0], b=sides[1], verdict="accept", says="", gates=(), batch=1, golden="",
                                      num_items=8),
    )  # fmt: skip
    document = OptimizationDocument(
        baseline=sides[0], model=given, objective="throughput", max_drop=0.01, batch=1, golden="", attempts=(attempt,),
        front=("chosen",), recommended="chosen", says="", skipped=(),
    )  # fmt: skip
    items = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    layers = with_layers(document, items).attempts[0].validation.layers
    assert [one.name for one in layers] == ["between", "y"]
    assert all(abs((one.relative_l2 or 0.0) - 0.01) < 1e-3 for one in layers)
