"""Our equalization against Brevitas', where that is installed (it needs PyTorch)."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from headrace.optimize.equalization import ROUNDS, equalize

NAMES = ("stem", "dw", "pw")


def by_brevitas(torch: Any, equalize_: Any, weights: dict[str, np.ndarray], item: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights of the network's convolutions after Brevitas has equalized them, in as many rounds."""
    from torch import nn

    channels = len(weights["stem.w"])
    network = nn.Sequential()
    for name, groups in zip(NAMES, (1, channels, 1), strict=True):
        array = weights[f"{name}.w"]
        size = array.shape[-1]
        layer = nn.Conv2d(array.shape[1] * groups, channels, size, padding=size // 2, groups=groups)
        layer.weight.data, layer.bias.data = torch.tensor(array), torch.tensor(weights[f"{name}.b"])
        network.append(layer)
        network.append(nn.ReLU())
    traced = torch.fx.symbolic_trace(copy.deepcopy(network.eval()))
    found = equalize_.EqualizeGraph(iterations=ROUNDS, threshold=0.0, merge_bias=False)
    even = found.apply(traced)
    layers = [module for module in even.modules() if isinstance(module, nn.Conv2d)]
    with torch.no_grad():
        np.testing.assert_allclose(even(torch.tensor(item)), network(torch.tensor(item)), rtol=1e-3, atol=1e-3)
    return {f"{name}.w": layer.weight.detach().numpy() for name, layer in zip(NAMES, layers, strict=True)}


@pytest.mark.full
def test_the_weights_are_those_of_brevitas(nets: ModuleType, tmp_path: Path) -> None:
    """A convolution, a depthwise and a pointwise one, whose channels differ: the same ranges to 1 %."""
    torch = pytest.importorskip("torch")
    equalize_ = pytest.importorskip("brevitas.graph.equalize")
    weights = nets.imbalanced(nets.make_weights())
    item = np.random.default_rng(0).standard_normal((2, 3, nets.SIDE, nets.SIDE)).astype(np.float32)
    theirs = by_brevitas(torch, equalize_, weights, item)
    equalize(nets.save_net(tmp_path / "net.onnx", weights), tmp_path / "even.onnx")
    model = onnx.load(tmp_path / "even.onnx")
    ours = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name in (f"{name}.w" for name in NAMES):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-2, atol=1e-2 * np.abs(ours[name]).max())
