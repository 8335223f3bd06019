"""Layers of a model as PyTorch runs it on the CPU, from `torch.profiler`.

How this works: the artifact is an exported program (`torch.export.save`, `.pt2`), whose graph is a list of operators. One
call through an interpreter of that graph gives each operator's shapes. The profiler records a block of calls, as it costs
much to start and stop: the first profiled call after plain ones starts it, the first plain one stops it, and the timing
loop drops both. Within a call, the outermost operators are matched to the graph's in order; what an operator calls itself
is part of it.

PyTorch's number of threads belongs to the process; it is put back when the model is closed. Needs the `torch` package.

References:
    https://pytorch.org/docs/stable/profiler.html, https://pytorch.org/docs/stable/export.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError, SettingsError
from headrace.base.protocols import TensorSpec
from headrace.engines import TORCH
from headrace.profiler.layers.operations import Tensor, Work, count
from headrace.profiler.layers.protocol import Feed, LayerFacts, Recording, optional_module
from headrace.profiler.layers.timing import best_seconds

MAX_EVENTS = 200_000
"""Of all blocks; each takes about a kilobyte of memory."""
_CALL = "headrace::call"
_OPERATORS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), "Conv"),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), "ConvTranspose"),
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "addmm"), "MatMul"),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), "MaxPool"),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), "AveragePool"),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), "GlobalAveragePool"),
    **dict.fromkeys(("relu", "relu_"), "Relu"),
    **dict.fromkeys(("hardtanh", "hardtanh_", "clamp", "clamp_", "clamp_min", "relu6"), "Clip"),
    **dict.fromkeys(("add", "add_"), "Add"),
    **dict.fromkeys(("mul", "mul_"), "Mul"),
    **dict.fromkeys(("silu", "silu_"), "Swish"),
    **dict.fromkeys(("hardswish", "hardswish_"), "HardSwish"),
    **dict.fromkeys(("flatten", "view", "reshape", "squeeze", "unsqueeze", "detach", "alias", "dropout"), "Reshape"),
    # without a copy these only change strides
    **dict.fromkeys(("permute", "transpose", "t", "expand", "slice", "select", "split", "chunk", "unbind"), "Reshape"),
    "sub": "Sub", "div": "Div", "sigmoid": "Sigmoid", "tanh": "Tanh", "gelu": "Gelu", "exp": "Exp", "sqrt": "Sqrt",
    "pow": "Pow", "softmax": "Softmax", "log_softmax": "LogSoftmax", "batch_norm": "BatchNormalization",
    "mean": "ReduceMean", "sum": "ReduceSum", "layer_norm": "LayerNormalization", "group_norm": "GroupNormalization",
    "cat": "Concat", "contiguous": "Transpose", "clone": "Transpose", "to": "Cast", "embedding": "Gather", "pad": "Pad",
}  # fmt: skip


class TorchLayers:
    """Opens exported programs to measure their layers; a `LayerProfiler`."""

    engine = TORCH

    def open(self, artifact: Path, *, threads: int, options: Mapping[str, Any]) -> TorchProfiledModel:
        """See `LayerProfiler.open`; there are no options."""
        if options:
            raise SettingsError(f"[model.options] has {sorted(options)}; the torch engine takes none")
        return TorchProfiledModel(artifact, threads)

    def matrix_product_seconds(self, side: int, *, threads: int) -> float:
        """See `LayerProfiler.matrix_product_seconds`."""
        torch = _torch()
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            matrix = torch.randn(side, side)
            with torch.inference_mode():
                return best_seconds(lambda: matrix @ matrix)
        finally:
            torch.set_num_threads(before)


class TorchProfiledModel:
    """An exported program, run with and without the profiler; a `ProfiledModel`."""

    def __init__(self, artifact: Path, threads: int) -> None:
        self._torch = _torch()
        self._artifact = artifact
        if not artifact.is_file():
            raise EngineError(f"model file {artifact} does not exist")
        try:
            program = self._torch.export.load(str(artifact))
        except Exception as error:  # a zip, pickle or schema error, by what the file is
            raise EngineError(
                f"model file {artifact} cannot be opened as an exported program ({error}); write it with torch.export.save"
            ) from error
        self._module: Any = program.module()
        given = set(program.graph_signature.user_inputs)
        self.inputs: Sequence[TensorSpec] = [
            _spec(node.name, node.meta["val"]) for node in program.graph.nodes if node.name in given
        ]
        self._threads_before = self._torch.get_num_threads()
        self._torch.set_num_threads(threads)
        self._layers: tuple[LayerFacts, ...] = ()
        self._targets: list[str] = []
        self._events_per_call = 1
        self._profile: Any = None
        self._blocks: list[Any] = []
        self._num_calls = 0

    @property
    def max_profiled_calls(self) -> int:
        """Calls whose events are kept in memory."""
        return max(1, MAX_EVENTS // self._events_per_call)

    def describe(self, feed: Feed) -> None:
        """Run the graph operator by operator, and once under the profiler."""
        try:
            self._targets, self._layers = _walk(self._torch, self._module, self._tensors(feed))
        except (RuntimeError, AssertionError) as error:
            shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feed.items())
            raise EngineError(f"{self._artifact} refuses the inputs {shapes}: {error}") from error
        self.run_profiled(feed)
        self._stop()
        self._events_per_call = max(1, len(self._blocks.pop().events()))
        self._num_calls = 0

    def run(self, feed: Feed) -> None:
        """Run without the profiler."""
        if self._profile is not None:
            self._stop()
        self._call(feed)

    def run_profiled(self, feed: Feed) -> None:
        """Run with the profiler."""
        if self._profile is None:
            profiler = self._torch.profiler
            self._profile = profiler.profile(activities=[profiler.ProfilerActivity.CPU])
            self._profile.start()
        self._num_calls += 1
        with self._torch.profiler.record_function(_CALL):
            self._call(feed)

    def read_recording(self, kept: Sequence[int]) -> Recording:
        """Return what the profiler recorded of these calls."""
        self._stop()
        calls = [call for block in self._blocks for call in _calls(block.events())]
        there = [calls[number] for number in kept if number < len(calls)]
        rows = [row for call in there if (row := _match_calls(call, self._targets)) is not None]
        warnings = []
        if len(rows) < len(there):
            warnings.append(
                f"in {len(there) - len(rows)} calls other operators ran than the graph holds; they were left out"
            )
        return Recording(
            layers=self._layers,
            raw_seconds=np.mean(rows, axis=0) if rows else np.zeros(len(self._layers)),
            num_calls=len(rows),
            num_missing=self._num_calls - len(calls),
            warnings=tuple(warnings),
        )

    def close(self) -> None:
        """Stop the profiler, free the model and put the number of threads back."""
        if self._module is not None:
            self._stop()
            self._torch.set_num_threads(self._threads_before)
        self._module, self._blocks = None, []

    def _call(self, feed: Feed) -> None:
        with self._torch.inference_mode():
            self._module(*self._tensors(feed))

    def _tensors(self, feed: Feed) -> list[Any]:
        return [self._torch.from_numpy(feed[spec.name]) for spec in self.inputs]

    def _stop(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._blocks.append(self._profile)
            self._profile = None


def _torch() -> Any:
    return optional_module("torch", "measuring layers in PyTorch", "torch")


def _spec(name: str, value: Any) -> TensorSpec:
    shape = tuple(axis if isinstance(axis, int) else str(axis) for axis in value.shape)
    return TensorSpec(name, _dtype(value), shape)


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _walk(torch: Any, module: Any, tensors: Sequence[Any]) -> tuple[list[str], tuple[LayerFacts, ...]]:
    """Return the names that the profiler gives the graph's operators, in order, and what is known of each."""
    targets: list[str] = []
    layers: list[LayerFacts] = []

    class Walk(torch.fx.Interpreter):  # type: ignore[misc]
        """Runs a graph and notes the shapes."""

        def run_node(self, node: Any) -> Any:
            """Run one operator."""
            result = super().run_node(node)
            if node.op == "call_function" and hasattr(node.target, "overloadpacket"):
                arguments, _ = self.fetch_args_kwargs_from_env(node)
                outputs = _list_tensors(torch, result)
                if outputs:  # else it asks for a shape
                    name = node.target.overloadpacket.__name__
                    targets.append(f"aten::{name}")
                    layers.append(_facts(torch, node, name, arguments, outputs))
            return result

    with torch.inference_mode():
        Walk(module).run(*tensors)
    return targets, tuple(layers)


def _facts(torch: Any, node: Any, name: str, arguments: Sequence[Any], outputs: Sequence[Tensor]) -> LayerFacts:
    inputs = [tensor for argument in arguments for tensor in _list_tensors(torch, argument)]
    return LayerFacts(
        key=node.name,
        name=node.name,
        operator=name,
        provider="CPU",
        work=_work(name, inputs, outputs, arguments),
        output_shape="x".join(str(length) for length in outputs[0].shape),
        precision=(inputs or outputs)[0].dtype,
    )


def _list_tensors(torch: Any, value: Any) -> list[Tensor]:
    """Return the tensors in an argument or a result."""
    if isinstance(value, torch.Tensor):
        return [Tensor(_dtype(value), tuple(value.shape))]
    return (
        [tensor for part in value for tensor in _list_tensors(torch, part)] if isinstance(value, list | tuple) else []
    )


def _work(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], arguments: Sequence[Any]) -> Work:
    if name == "scaled_dot_product_attention" and len(inputs) >= 3:  # (..., sequence, features): two products
        return Work(4.0 * outputs[0].num_elements * inputs[1].shape[-2], count("", inputs, outputs).num_bytes)
    operator = _OPERATORS.get(name, name)
    if name == "addmm":
        inputs = [*inputs[1:], inputs[0]]  # the bias comes first
    attributes = {}
    if operator in ("MaxPool", "AveragePool"):
        num_axes = int(name[-2])
        size = arguments[1]
        attributes["kernel_shape"] = (
            [size] * num_axes if isinstance(size, int) else list(size) * (num_axes // len(size))
        )
    return count(operator, inputs, outputs, attributes)


def _calls(events: Sequence[Any]) -> Iterator[list[Any]]:
    """Return the outermost operators of each call, in order."""
    for call in sorted((e for e in events if e.name == _CALL), key=lambda e: e.time_range.start):
        yield sorted(call.cpu_children, key=lambda e: e.time_range.start)


def _match_calls(call: Sequence[Any], targets: Sequence[str]) -> list[float] | None:
    """Return the seconds of each operator of the graph; None where another sequence ran.

    Checks of shapes and views that the program makes besides are passed over.
    """
    seconds: list[float] = []
    for event in call:
        if len(seconds) < len(targets) and event.name == targets[len(seconds)]:
            seconds.append(event.time_range.elapsed_us() * 1e-6)
    return seconds if len(seconds) == len(targets) else None
