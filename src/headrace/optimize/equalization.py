"""Cross-layer equalization: evens out the ranges of channels between two convolutions, and changes nothing that they compute.

A network may hold channels of very different sizes, of which float32 takes no notice: multiply one channel by 50 here and
divide by 50 in the next layer. Int8 has one step for all channels of a tensor, and the small ones vanish in it. No choice of
calibration data mends that; scaling the channels back does.

For convolutions A, B with output channel i of A as input channel i of B, and an activation between them that is linear on
either side of zero, weights A[i] / s and B[:, i] * s compute the same for every s > 0. With s = sqrt(rA / rB) for ranges rA =
max |A[i]| and rB = max |B[:, i]| both are sqrt(rA rB).

References:
    M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.optimize.onnx_files import Graph, load, numpy_helper, save

#: Rounds over all pairs; each pair changes its neighbours' ranges.
ROUNDS = 20
#: Operators f with f(s x) = s f(x) for s > 0. Clip is none: its bound would have to be scaled for each channel.
_HOMOGENEOUS = ("Relu", "LeakyRelu", "Identity")


def equalize(artifact: Path, output: Path) -> dict[str, Any]:
    """Write an ONNX model with the channels of its pairs of convolutions evened out, and return how many there were.

    Args:
        artifact: The model, with batch normalizations folded into its convolutions.
        output: Where to.

    Raises:
        EngineError: If it cannot be read.
    """
    model = load(artifact)
    graph = Graph(model)
    pairs = list(_pairs(graph))
    arrays = {
        name: numpy_helper.to_array(graph.weights[name]).astype(np.float64)
        for pair in pairs
        for node in pair
        for name in node.input[1:3]
    }
    rounds = ROUNDS if pairs else 0
    for _ in range(rounds):
        for first, second in pairs:
            _even_out(first, second, arrays)
    for name, array in arrays.items():
        graph.weights[name].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    save(model, output)
    return {"pairs": len(pairs), "rounds": rounds}


def num_pairs(artifact: Path) -> int:
    """Return how many pairs of convolutions could be evened out.

    Raises:
        EngineError: If the file cannot be read.
    """
    return len(list(_pairs(Graph(load(artifact)))))


def _pairs(graph: Graph) -> Iterator[tuple[Any, Any]]:
    """Give convolutions whose output only another one takes, be it through an activation that scales with its input."""
    for first in graph.model.graph.node:
        if not _is_scalable(graph, first):
            continue
        second = graph.only_taker(first.output[0])
        while second is not None and second.op_type in _HOMOGENEOUS:
            second = graph.only_taker(second.output[0])
        if second is None or not _is_scalable(graph, second) or second is first:
            continue
        channels = graph.weights[first.input[1]].dims[0]
        shape = graph.weights[second.input[1]].dims
        groups = _groups(second)
        if shape[1] * groups == channels and (groups == 1 or shape[1] == 1):
            yield first, second


def _is_scalable(graph: Graph, node: Any) -> bool:
    """Return whether it is a convolution with float weights of its own: weights that another node takes too must stay."""
    if node.op_type != "Conv":
        return False
    own = list(node.input[1:3])
    return all(
        name in graph.weights and len(graph.takers[name]) == 1 and graph.weights[name].data_type == _FLOAT
        for name in own
    )


#: onnx.TensorProto.FLOAT
_FLOAT = 1


def _groups(node: Any) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)


def _even_out(first: Any, second: Any, arrays: dict[str, np.ndarray]) -> None:
    a, b = arrays[first.input[1]], arrays[second.input[1]]
    depthwise = _groups(second) > 1
    # (channels, everything else) of both; a depthwise convolution has one or more outputs for each input channel.
    channels = len(a)
    of_b = b.reshape(channels, -1) if depthwise else np.moveaxis(b, 1, 0).reshape(channels, -1)
    range_a, range_b = np.abs(a.reshape(channels, -1)).max(axis=1), np.abs(of_b).max(axis=1)
    used = (range_a > 0) & (range_b > 0)
    scale = np.ones(channels)
    scale[used] = np.sqrt(range_a[used] / range_b[used])
    a /= scale.reshape(-1, *[1] * (a.ndim - 1))
    if len(first.input) > 2:
        arrays[first.input[2]] /= scale
    if depthwise:
        b *= np.repeat(scale, len(b) // channels).reshape(-1, *[1] * (b.ndim - 1))
    else:
        b *= scale.reshape(1, -1, *[1] * (b.ndim - 2))
