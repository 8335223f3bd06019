"""Layers of a model as OpenVINO runs it on the CPU, from `get_profiling_info`.

How this works: two compiled models, one with performance counters. The counters are means over all calls of a compiled
model, so the calls of `describe` are taken out by difference, and single calls cannot be left out. Shapes and precisions
come from the compiled model's execution graph, whose nodes carry the same names.

Needs the `openvino` package. Precision and threads are those of the engine: see `headrace.engines.openvino_engine`.

References:
    https://docs.openvino.ai: InferRequest.get_profiling_info, CompiledModel.get_runtime_model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from headrace.base.errors import EngineError
from headrace.base.protocols import TensorSpec
from headrace.engines import OPENVINO
from headrace.engines.openvino_engine import compile_model, compile_settings, read_model, tensor_specs
from headrace.profiler.layers.operations import Tensor, Work, count
from headrace.profiler.layers.protocol import Feed, LayerFacts, Recording
from headrace.profiler.layers.timing import best_seconds

NUM_FIRST_CALLS = 5
"""Made by `describe` and left out of the means."""
_OPERATORS = {
    "Convolution": "Conv", "GroupConvolution": "Conv", "Deconvolution": "ConvTranspose", "FullyConnected": "MatMul",
    "Pooling": "MaxPool", "AvgPool": "AveragePool", "Multiply": "Mul", "Subtract": "Sub", "Divide": "Div",
    "Clamp": "Clip", "SoftMax": "Softmax", "MVN": "LayerNormalization", "RMS": "RMSNormalization", "Reorder": "ReorderOutput",
    "Concatenation": "Concat", "Convert": "Cast", "Broadcast": "Expand", "StridedSlice": "Slice", "Power": "Pow",
    "Maximum": "Max", "Minimum": "Min",
}  # fmt: skip
_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "boolean": "bool"} | {
    f"{short}{bits}": f"{long}{bits}" for short, long in (("i", "int"), ("u", "uint")) for bits in (4, 8, 16, 32, 64)
}
#: Mean seconds of each node over all calls so far, by name.
_Counters = Mapping[str, float]


class OpenVinoLayers:
    """Opens what OpenVINO reads (ONNX, its own XML) to measure its layers; a `LayerProfiler`."""

    engine = OPENVINO

    def open(self, artifact: Path, *, threads: int, options: Mapping[str, Any]) -> OpenVinoProfiledModel:
        """See `LayerProfiler.open`; the options are those of the engine."""
        return OpenVinoProfiledModel(artifact, threads, options)

    def matrix_product_seconds(self, side: int, *, threads: int) -> float:
        """See `LayerProfiler.matrix_product_seconds`."""
        operators = openvino.opset13
        left = operators.parameter([side, side], np.float32)
        right = operators.parameter([side, side], np.float32)
        model = openvino.Model([operators.matmul(left, right, False, False)], [left, right])
        request = compile_model(model, compile_settings(threads=threads, options={})).create_infer_request()
        matrix = np.random.default_rng(0).standard_normal((side, side), np.float32)
        return best_seconds(lambda: request.infer([matrix, matrix]))


class OpenVinoProfiledModel:
    """A model compiled with and without performance counters; a `ProfiledModel`."""

    max_profiled_calls = 1_000_000

    def __init__(self, artifact: Path, threads: int, options: Mapping[str, Any]) -> None:
        self._artifact, self._settings = artifact, compile_settings(threads=threads, options=options)
        self._model: Any = read_model(artifact)
        self.inputs: Sequence[TensorSpec] = tensor_specs(self._model.inputs)
        self._plain: Any = None
        self._profiled: Any = None
        self._layers: tuple[LayerFacts, ...] = ()
        self._before: _Counters = {}
        self._num_calls = 0

    def describe(self, feed: Feed) -> None:
        """Compile for the inputs' shapes, read the execution graph and make the first calls."""
        try:
            self._model.reshape({name: list(array.shape) for name, array in feed.items()})
            self._plain = compile_model(self._model, self._settings).create_infer_request()
            compiled = compile_model(self._model, {**self._settings, "PERF_COUNT": True})
            self._profiled = compiled.create_infer_request()
            for _ in range(NUM_FIRST_CALLS):
                self._profiled.infer(dict(feed))
        except RuntimeError as error:
            shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feed.items())
            raise EngineError(f"{self._artifact} refuses the inputs {shapes}: {error}") from error
        executed = self._list_executed()
        kernels = {op.get_friendly_name(): op.get_attributes().get("kernel") for op in self._model.get_ops()}
        nodes = {op.get_friendly_name(): op for op in compiled.get_runtime_model().get_ops()}
        self._layers = tuple(
            _facts(info, nodes[info.node_name], kernels) for info in executed if info.node_name in nodes
        )
        self._before = {info.node_name: info.real_time.total_seconds() for info in executed}

    def run(self, feed: Feed) -> None:
        """Run without counters."""
        self._plain.infer(feed)

    def run_profiled(self, feed: Feed) -> None:
        """Run with counters."""
        self._num_calls += 1
        self._profiled.infer(feed)

    def read_recording(self, kept: Sequence[int]) -> Recording:
        """Return the means of all calls since `describe`; `kept` cannot be heeded."""
        after = {info.node_name: info.real_time.total_seconds() for info in self._list_executed()}
        num_all = NUM_FIRST_CALLS + self._num_calls
        sums = [
            num_all * after.get(layer.key, 0.0) - NUM_FIRST_CALLS * self._before[layer.key] for layer in self._layers
        ]
        return Recording(
            layers=self._layers,
            raw_seconds=np.maximum(np.array(sums), 0.0) / max(1, self._num_calls),
            num_calls=self._num_calls,
            warnings=("OpenVINO tells means over all calls, first ones of each block and disturbed ones among them",),
        )

    def close(self) -> None:
        """Free both."""
        self._plain = self._profiled = self._model = None

    def _list_executed(self) -> list[Any]:
        """Return what was executed, in order."""
        return [info for info in self._profiled.get_profiling_info() if info.status == info.Status.EXECUTED]


def _facts(info: Any, node: Any, kernels: Mapping[str, Sequence[int] | None]) -> LayerFacts:
    """Return what the execution graph says of a node.

    Args:
        info: The node's counters.
        node: The node of the execution graph.
        kernels: {operator of the model: kernel's size}, for poolings.
    """
    said = node.get_rt_info()
    precision = _read_info(said, "runtimePrecision")
    inputs = [_tensor(port, port.get_source_output().get_node(), precision) for port in node.inputs()]
    outputs = [_tensor(port, node, precision) for port in node.outputs()]
    kernel = kernels.get(info.node_name)
    attributes = {} if kernel is None else {"kernel_shape": kernel}
    operator = _OPERATORS.get(info.node_type, info.node_type)
    return LayerFacts(
        key=info.node_name,
        name=info.node_name,
        operator=info.node_type,
        provider=f"CPU {info.exec_type}",
        work=_count_grouped(operator, inputs, outputs) or count(operator, inputs, outputs, attributes),
        output_shape="x".join(str(length) for length in outputs[0].shape) if outputs else "",
        precision=_dtype(precision),
    )


def _count_grouped(operator: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Work | None:
    """Count a convolution whose weights have an axis of groups in front, (groups, out / groups, in / groups, *kernel)."""
    if operator not in ("Conv", "ConvTranspose") or len(inputs[1].shape) != len(inputs[0].shape) + 1:
        return None
    weight = inputs[1]
    flat = Tensor(weight.dtype, (weight.shape[0] * weight.shape[1], *weight.shape[2:]))
    return count(operator, [inputs[0], flat, *inputs[2:]], outputs)


def _tensor(port: Any, source: Any, precision: str) -> Tensor:
    """Return the tensor at a port; constants have been converted to the precision that the node computes with."""
    said = source.get_rt_info()
    constant = _read_info(said, "layerType") == "Const"
    return Tensor(
        _dtype(precision if constant else _read_info(said, "outputPrecisions").split(",")[0]), tuple(port.get_shape())
    )


def _read_info(info: Any, key: str) -> str:
    return str(info[key].value) if key in info else ""


def _dtype(name: str) -> str:
    return _DTYPES.get(name, name)
