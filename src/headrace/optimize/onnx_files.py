"""ONNX files as graphs that can be changed: reading, folding, writing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import onnxruntime

from headrace.base.errors import EngineError, MissingExtra
from headrace.engines.model_files import check_onnx
from headrace.engines.onnx_engine import open_session

try:
    import onnx
    from onnx import numpy_helper, version_converter
except ImportError as missing:
    raise MissingExtra("changing model files", "onnx") from missing

#: Of one Protocol Buffers message.
_MOST_BYTES = 2**31
#: In which DequantizeLinear has scales for each channel.
LEAST_OPSET = 13
__all__ = ["LEAST_OPSET", "Graph", "fold", "load", "numpy_helper", "onnx", "opset_of", "save"]


def load(artifact: Path) -> Any:
    """Return an ONNX file's model, with the weights that it keeps in other files.

    Raises:
        EngineError: If it is no ONNX file, or refers to what it must not.
    """
    check_onnx(artifact)  # before anything opens what the file names
    try:
        return onnx.load(str(artifact))
    except Exception as error:  # protobuf and the operating system raise their own types
        raise EngineError(f"model file {artifact} is no ONNX file that can be read: {error}") from error


def save(model: Any, output: Path) -> None:
    """Check a model and write it, as one file.

    Raises:
        EngineError: If it is no valid model, or larger than a file of this format may be.
    """
    if model.ByteSize() >= _MOST_BYTES:
        raise EngineError("the changed model is larger than 2 GiB, the most that one ONNX file holds")
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise EngineError(f"the changed model is not valid: {error}") from error
    output.write_bytes(model.SerializeToString())


def fold(artifact: Path, output: Path) -> None:
    """Write a model with its constants computed and its batch normalizations folded into convolutions, in standard operators.

    Operators older than `LEAST_OPSET` are replaced by those of it, where ONNX can do that: int8 is written in those. Every
    node has a name then, by which it is found again in models made from this one.

    Raises:
        EngineError: If ONNX Runtime cannot open it.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(output)
    options.log_severity_level = 4
    if check_onnx(artifact).sidecars:  # ONNX Runtime's file would go on referring to them, from another folder
        whole = output.with_suffix(".whole.onnx")
        save(load(artifact), whole)
        open_session(whole, options)
        whole.unlink()
    else:
        open_session(artifact, options)
    model = _raise_operators(load(output))
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    save(model, output)


def opset_of(model: Any) -> int:
    """Return the version of the standard operators that a model is written in; 0 where it uses none."""
    return max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=0)


def _raise_operators(model: Any) -> Any:
    """Return a model in operators that int8 can be written in; as it is, where it has them or cannot be converted."""
    if opset_of(model) >= LEAST_OPSET:
        return model
    try:
        return version_converter.convert_version(model, LEAST_OPSET)
    except Exception:  # it raises types of its own for operators that it does not know; then int8 is written per tensor
        return model


class Graph:
    """Who makes and who takes each tensor of a model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.weights: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.maker: dict[str, Any] = {name: node for node in model.graph.node for name in node.output}
        self.takers: dict[str, list[Any]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self.takers[name].append(node)
        self.outputs = {value.name for value in model.graph.output}

    def only_taker(self, tensor: str) -> Any | None:
        """Return the one node that takes a tensor; None if there are several, or it is an output of the model."""
        takers = self.takers[tensor]
        return takers[0] if len(takers) == 1 and tensor not in self.outputs else None
