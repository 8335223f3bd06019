"""Puts those parts of an int8 model back to float32 that int8 does most harm to.

One part is a group: a tensor of activations with the nodes that make it and take it. Taking back single nodes does not work: a
node's harm is mostly done by the ranges of a tensor that its neighbours share, so that no node alone makes a difference (in one
network the node at fault ranked last of ten, and nothing was won until all were back in float32). A tensor and what an
activation function makes of it are one group: with the one in int8, nothing is won by the other in float32.

How this works: an int8 model has QuantizeLinear and DequantizeLinear around what runs in int8. To revert a group its pair is
taken out, and the weights of its nodes are those of the float32 model again. Each group is tried alone; the one that brings the
answers closest to those of the float32 model stays, and the rest are tried again beside it, until the answers are near enough
or no group makes much of a difference any more: what is left then is what int8 costs everywhere.

References:
    NNCF, "Quantizing with accuracy control" (ranks groups of quantizers, reverts one, ranks again);
    B. Jacob et al., CVPR 2018 (what the pairs stand for).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from headrace.base.errors import EngineError
from headrace.base.formatting import pluralize
from headrace.engines.onnx_engine import tensor_specs
from headrace.optimize.int8 import feed_of
from headrace.optimize.onnx_files import Graph, load, onnx, save
from headrace.validate.golden import spread
from headrace.validate.items import Items, find_fixed_batch

#: What they take and what they give is one group.
_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "HardSigmoid", "HardSwish", "Sigmoid")
#: Items on which groups are ranked.
RANKING_ITEMS = 64
#: At most this share of the groups goes back: with more of them in float32, there is little left that is faster.
_MOST_REVERTED = 0.5
#: A group that brings the answers nearer by less than this share is one among many.
_WORTH_REVERTING = 0.15
#: If the answers are not at least so many times as near afterwards, it was not these groups.
_LEAST_GAIN = 2.0


@dataclass(frozen=True, slots=True)
class Reverted:
    """What was put back."""

    tensors: tuple[str, ...]
    """Of activations, in the order in which they were chosen."""
    num_groups: int
    error_before: float
    """Mean relative L2 of the answers."""
    error_after: float


def revert(
    quantized: Path,
    original: Path,
    items: Items,
    output: Path,
    *,
    goal: float,
    stop: Callable[[], bool] = lambda: False,
) -> Reverted:
    """Write the int8 model with as few groups in float32 as bring its answers near enough to the float32 model's.

    Args:
        quantized: The int8 model, with pairs of QuantizeLinear and DequantizeLinear.
        original: The float32 model that it was made from, with the same names of nodes.
        items: (items, ...) as its input takes them.
        output: Where to.
        goal: Mean relative L2 of the answers from which on nothing more is put back.
        stop: Asked before each group is tried; what was found by then is not written, for nobody knows whether it is the best.

    Raises:
        EngineError: If a file cannot be read, no few groups are to blame, or it was stopped.
    """
    model, source = load(quantized), load(original)
    items = items[spread(len(items), RANKING_ITEMS)]
    wanted = _answers(source, items)
    groups = _groups(Graph(model))
    before = error = _distance(_answers(model, items), wanted)
    chosen: list[tuple[str, ...]] = []
    while error > goal and len(chosen) < max(1, int(_MOST_REVERTED * len(groups))):
        found = [
            (_distance(_answers(without(model, source, _join([*chosen, group])), items), wanted), group)
            for group in groups
            if group not in chosen and not stop()
        ]
        if stop():
            raise EngineError(f"stopped by the budget with {len(chosen)} of {pluralize(len(groups), 'group')} put back")
        nearest, group = min(found, default=(error, ()))
        if nearest > (1 - _WORTH_REVERTING) * error:
            break
        error = nearest
        chosen.append(group)
    if error > goal and before < _LEAST_GAIN * error:
        raise EngineError(
            f"no few groups are to blame: with {len(chosen)} of {pluralize(len(groups), 'group')} back in float32 the answers "
            f"are still {error:.2g} off (relative L2, from {before:.2g})"
        )
    save(without(model, source, _join(chosen)), output)
    return Reverted(tuple(_join(chosen)), len(groups), before, error)


def _groups(graph: Graph) -> list[tuple[str, ...]]:
    """Return the tensors of activations that are quantized, in the order in which they are, with those made of them."""
    tensors = [
        node.input[0]
        for node in graph.model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] not in graph.weights
    ]
    groups: dict[str, tuple[str, ...]] = {}
    for tensor in tensors:
        before = _find_activated(graph, tensor)
        groups[tensor] = (*groups.pop(before), tensor) if before in groups else (tensor,)
    return list(groups.values())


def _find_activated(graph: Graph, tensor: str) -> str:
    """Return the quantized tensor that an activation function makes this one of; empty if none does."""
    maker = graph.maker.get(tensor)
    if maker is None or maker.op_type not in _ACTIVATIONS:
        return ""
    dequantizer = graph.maker.get(maker.input[0])
    quantizer = graph.maker.get(dequantizer.input[0]) if dequantizer is not None else None
    return str(quantizer.input[0]) if quantizer is not None and quantizer.op_type == "QuantizeLinear" else ""


def _join(groups: list[tuple[str, ...]]) -> list[str]:
    return [tensor for group in groups for tensor in group]


def without(model: Any, source: Any, tensors: list[str]) -> Any:
    """Return a copy of an int8 model with the groups of these tensors in float32.

    Args:
        model: The int8 model.
        source: The float32 model.
        tensors: Of activations.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = Graph(changed)
    touched = []
    for tensor in tensors:
        touched += [graph.maker[tensor]] if tensor in graph.maker else []
        for quantizer in [node for node in graph.takers[tensor] if node.op_type == "QuantizeLinear"]:
            for dequantizer in graph.takers[quantizer.output[0]]:
                touched += graph.takers[dequantizer.output[0]]
                _rename_inputs(graph.takers[dequantizer.output[0]], dequantizer.output[0], tensor)
    _restore_weights(graph, source, touched)
    _remove_unused(changed)
    return changed


def _rename_inputs(nodes: list[Any], before: str, after: str) -> None:
    for node in nodes:
        for place, name in enumerate(node.input):
            if name == before:
                node.input[place] = after


def _restore_weights(graph: Graph, source: Any, nodes: list[Any]) -> None:
    """Give nodes the float32 weights that they have in the source."""
    originals = {node.name: node for node in source.graph.node}
    weights = {tensor.name: tensor for tensor in source.graph.initializer}
    for node in nodes:
        original = originals.get(node.name)
        if original is None:
            continue
        for place, name in enumerate(original.input):
            if name in weights and node.input[place] != name:
                node.input[place] = name
                if name not in graph.weights:
                    graph.model.graph.initializer.append(weights[name])
                    graph.weights[name] = weights[name]


def _remove_unused(model: Any) -> None:
    """Take out nodes and weights that nothing leads to an output from."""
    graph = Graph(model)
    needed = set(graph.outputs)
    kept = []
    for node in reversed(model.graph.node):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input)
    kept.reverse()
    del model.graph.node[:]
    model.graph.node.extend(kept)
    weights = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)


def _answers(model: Any, items: Items) -> np.ndarray:
    """Return (items, numbers) float64."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        inputs = tensor_specs(session.get_inputs())
        size = find_fixed_batch(inputs) or 8
        usable = len(items) - len(items) % size or len(items)
        parts = [session.run(None, feed_of(inputs, items[at : at + size])) for at in range(0, usable, size)]
    except Exception as error:  # ONNX Runtime raises its own types, none of them public
        raise EngineError(f"ONNX Runtime cannot run the changed model: {error}") from error
    flat = [
        np.concatenate([np.asarray(out, np.float64).reshape(len(out), -1) for out in part], axis=1) for part in parts
    ]
    return np.concatenate(flat)


def _distance(answers: np.ndarray, wanted: np.ndarray) -> float:
    sizes = np.maximum(np.linalg.norm(wanted, axis=1), 1e-30)
    return float((np.linalg.norm(answers - wanted, axis=1) / sizes).mean())
