"""Counts a model's operations from its file, to check the count from the engine's shapes.

The two ways have little in common but the operator table: here the graph is the one in the file, before the engine fuses,
pads or quantizes anything, and the shapes come from ONNX's shape inference. Needs the `onnx` package.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import EngineError
from headrace.profiler.layers.operations import Tensor, count
from headrace.profiler.layers.protocol import optional_module

#: Attributes that operations are counted by.
_ATTRIBUTES = frozenset({"kernel_shape", "mode", "equation"})
_MAX_SHAPE_ELEMENTS = 1024
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


@dataclass(frozen=True, slots=True)
class GraphCount:
    """What the graph says."""

    flops: float
    """Sum over the operators that could be counted."""
    uncounted: Mapping[str, int]
    """{operator: number of nodes} that could not be."""
    attributes: Mapping[str, Mapping[str, Any]]
    """{node name: attributes that operations are counted by}."""


def count_graph(artifact: Path, input_shapes: Mapping[str, tuple[int, ...]]) -> GraphCount:
    """Return the operations of one call with inputs of these shapes.

    Args:
        artifact: An ONNX file; the weights' values are not read.
        input_shapes: {name of the model's input: shape}.

    Raises:
        EngineError: If the file is no ONNX model or its shapes cannot be inferred; the reason is chained.
        MissingExtra: If the `onnx` package is not installed.
    """
    onnx = optional_module("onnx", "counting operations from the graph", "onnx")
    try:
        model = onnx.load(str(artifact), load_external_data=False)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        constants = {weight.name for weight in model.graph.initializer} - {value.name for value in model.graph.input}
        graph = _infer_shapes(onnx, model, input_shapes)
    except Exception as error:  # protobuf, checker and inference each raise types of their own
        raise EngineError(f"shapes of {artifact} cannot be inferred: {type(error).__name__}: {error}") from error
    tensors = _tensors(onnx, graph)
    flops, uncounted, attributes = 0.0, Counter[str](), {}
    for node in _find_computing_nodes(graph, constants):
        known = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name in _ATTRIBUTES}
        attributes[node.name] = {k: v.decode() if isinstance(v, bytes) else v for k, v in known.items()}
        work = _node_flops(node, tensors, attributes[node.name])
        if work is None:
            uncounted[node.op_type] += 1
        else:
            flops += work
    return GraphCount(flops, dict(uncounted), attributes)


def _infer_shapes(onnx: Any, model: Any, input_shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Return the graph with the type of each value, the inputs' axes set to these lengths."""
    graph = model.graph
    for value in graph.input:
        for axis, length in zip(value.type.tensor_type.shape.dim, input_shapes.get(value.name, ()), strict=False):
            axis.dim_value = length
    # What was inferred for another batch size stands in the way.
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    _drop_large_values(onnx, graph)
    return onnx.shape_inference.infer_shapes(model, data_prop=True).graph


def _drop_large_values(onnx: Any, graph: Any) -> None:
    """Make inputs of the large weights: inference copies the model, and cannot copy 2 GB. Small ones may be shapes."""
    given = {value.name for value in graph.input}
    large = [weight for weight in graph.initializer if math.prod(weight.dims) > _MAX_SHAPE_ELEMENTS]
    small = [weight for weight in graph.initializer if math.prod(weight.dims) <= _MAX_SHAPE_ELEMENTS]
    graph.input.extend(
        onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        for weight in large
        if weight.name not in given
    )
    del graph.initializer[:]
    graph.initializer.extend(small)


def _tensors(onnx: Any, graph: Any) -> dict[str, Tensor]:
    """Return {name: tensor} of values whose shape is known."""
    known = {weight.name: Tensor(_dtype(onnx, weight.data_type), tuple(weight.dims)) for weight in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        axes = kind.shape.dim
        if kind.HasField("shape") and all(axis.HasField("dim_value") for axis in axes):
            known[value.name] = Tensor(_dtype(onnx, kind.elem_type), tuple(axis.dim_value for axis in axes))
    return known


def _dtype(onnx: Any, data_type: int) -> str:
    name = str(onnx.TensorProto.DataType.Name(data_type)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _find_computing_nodes(graph: Any, constants: set[str]) -> Iterator[Any]:
    """Return the nodes that an engine runs in each call: those of constants alone are computed once, beforehand."""
    constants = set(constants)
    for node in graph.node:
        if all(name in constants or not name for name in node.input) and node.op_type not in _CONTROL_FLOW:
            constants.update(node.output)
        else:
            yield node


def _node_flops(node: Any, tensors: Mapping[str, Tensor], attributes: Mapping[str, Any]) -> float | None:
    names = [name for name in node.input if name]
    outputs = [name for name in node.output if name]
    if any(name not in tensors for name in (*names, *outputs)):
        # data movement counts none whatever its shape
        return 0.0 if count(node.op_type, (), ()).flops == 0 else None
    work = count(node.op_type, [tensors[name] for name in names], [tensors[name] for name in outputs], attributes)
    return work.flops
