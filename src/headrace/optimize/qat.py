"""Quantization-aware training: the user's training goes on with the rounding of int8 in the network, which learns to bear it.

Weights are rounded as int8 holds them (signed, one step for each output channel), and so is what enters each convolution and
each linear layer (one step for the tensor, over a running range; unsigned, or around zero where the target's preset says so);
gradients pass the rounding as if it were not there. What comes out is an ordinary network again, its weights on the steps of
int8, and `int8` makes the file of it: there is one way to write int8, whatever was trained, and it is as fast.

Why like this:

- `fit` is the user's code and gets the user's network: the same classes, and `train()`, autocast and memory formats work. A
  network that torchao exports for training (PT2E) refuses `train()`; NNCF compiles an extension where it runs.
- Batch normalizations stay as they are. They scale output channels, and the step of each of these scales along: rounded and
  then folded is folded and then rounded. No statistics have to be frozen, or estimated for folded weights.
- The file's ranges are those of the calibration data, as of any int8 file here; the network is scored with these.

Sums and functions between layers are not rounded in training, though in the file they are; the gates judge the file.

References:
    B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018,
    section 3; Y. Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons", 2013 (gradients as if
    nothing were rounded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.optimize.presets import X86_VNNI, Preset
from headrace.optimize.recipe import MOST_LOSS, Trainable, called, right_answers
from headrace.optimize.torch_files import read_trained, torch, write_trained

#: Layers that run in int8. Those of transposed convolutions have their output channels elsewhere, and stay as they are.
_LAYERS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Linear)
#: Share of a new batch in a running range. Trainings may be short, so ten batches are to be enough.
_SHARE_OF_NEW = 0.1
_LARGEST_UNSIGNED, _LARGEST_SIGNED = 255, 127
_BATCH = 32
_ROUNDED = "the network with the rounding of int8 in it"
_NOT_PICKLED = "; such a network cannot be pickled as a whole: save network.state_dict()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What training came to, as shares of right answers on the recipe's own data."""

    right: float
    """With the rounding, after training."""
    right_before: float
    """Of the network as it was given."""
    right_untrained: float
    """With the rounding, before training."""

    @property
    def is_lost(self) -> bool:
        """Whether training has not repaired it."""
        return self.right < self.right_before - MOST_LOSS

    @property
    def says(self) -> str:
        """The outcome in words."""
        return (
            f"on the recipe's own data {self.right_untrained:.1%} right when rounded as in int8, {self.right:.1%} after "
            f"training with it, as given {self.right_before:.1%}"
        )


def train(
    recipe: Trainable,
    calibration: np.ndarray,
    kept: Path,
    say: Callable[[str], object] = lambda text: None,
    *,
    preset: Preset = X86_VNNI,
) -> tuple[Found, Any]:
    """Return what training with the rounding of int8 came to, and the network, with nothing of it left but rounded weights.

    Args:
        recipe: The user's.
        calibration: float32 (items, ...), which the ranges are from before and after training.
        kept: A file; what was trained before is read from it instead.
        say: Told what is going on.
        preset: How its file will be written: the network learns to bear the rounding of these types.

    Raises:
        EngineError: If the network has no layers that could run in int8, or `fit` fails on it.
    """
    network = recipe.build().eval()
    known = read_trained(kept, network, Found)
    if known is not None:
        return known, network.eval()
    say("training with the rounding of int8")
    before = right_answers(recipe, network, "the network as given")
    with _round_weights(network, preset):
        _calibrate(network, calibration)
        untrained = right_answers(recipe, network, _ROUNDED)
        called(recipe, "fit", network, on=_ROUNDED, hint=_NOT_PICKLED)
        network.float().cpu()
        _calibrate(network, calibration)
        right = right_answers(recipe, network, _ROUNDED)
        found = Found(right=right, right_before=before, right_untrained=untrained)
    write_trained(kept, network, asdict(found))
    say(found.says)
    return found, network


class _RoundedWeights(torch.nn.Module):  # type: ignore[misc]
    """Makes of (outputs, ...) weights what int8 holds of them: a step for each output, the same on both sides of zero."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self._largest = largest

    def forward(self, weights: Any) -> Any:
        largest = weights.detach().float().flatten(1).abs().amax(dim=1)
        steps = (largest / self._largest).clamp(min=torch.finfo(torch.float32).tiny)
        zeros = torch.zeros_like(steps, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weights, steps, zeros, 0, -self._largest, self._largest)


class _RoundedInput(torch.nn.Module):  # type: ignore[misc]
    """Makes of values what int8 holds of them, over a range that contains zero: signed, around zero, or unsigned.

    In training the range follows the batches; while `widens` is set it grows to hold all that it sees; else it stays.
    """

    def __init__(self, *, signed: bool) -> None:
        super().__init__()
        self._signed = signed
        self.widens = False
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self, values: Any) -> Any:
        if self.widens or self.training:
            self._see(values.detach().float())
        low, high = self.low.float(), self.high.float()
        tiny = torch.finfo(torch.float32).tiny
        if self._signed:
            step = (torch.maximum(-low, high) / _LARGEST_SIGNED).clamp(min=tiny)
            zero = torch.zeros_like(step, dtype=torch.int32)
            return torch.fake_quantize_per_tensor_affine(values, step, zero, -_LARGEST_SIGNED, _LARGEST_SIGNED)
        step = ((high - low) / _LARGEST_UNSIGNED).clamp(min=tiny)
        zero = (-low / step).round().clamp(0, _LARGEST_UNSIGNED).to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(values, step, zero, 0, _LARGEST_UNSIGNED)

    def _see(self, values: Any) -> None:
        low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
        if self.widens:
            low, high = torch.minimum(low, self.low), torch.maximum(high, self.high)
        else:
            low, high = (
                torch.lerp(old.float(), new, _SHARE_OF_NEW) for old, new in ((self.low, low), (self.high, high))
            )
        self.low.copy_(low)
        self.high.copy_(high)


def _round_input(layer: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Stand before a layer's forward; a function of the layer, so that copies of a network round by ranges of their own."""
    return (layer.rounded_input(inputs[0]), *inputs[1:])


@contextmanager
def _round_weights(network: Any, preset: Preset) -> Iterator[None]:
    """Have a network compute as in int8, in place; afterwards only its weights are rounded.

    Raises:
        EngineError: If there is nothing to be rounded.
    """
    from torch.nn.utils import parametrize

    layers = [layer for layer in network.modules() if isinstance(layer, _LAYERS)]
    if not layers:
        raise EngineError(
            "the network has no layers that run in int8: convolutions or linear ones, as modules of torch.nn"
        )
    hooks = []
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", _RoundedWeights(preset.largest_weight))
        layer.rounded_input = _RoundedInput(signed=preset.signed).train(layer.training)
        hooks.append(layer.register_forward_pre_hook(_round_input))
    yield
    for layer, hook in zip(layers, hooks, strict=True):
        hook.remove()
        del layer.rounded_input
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def _calibrate(network: Any, items: np.ndarray) -> None:
    """Set all ranges to what calibration data reach, and leave the network as it is for use."""
    network.eval()
    inputs = [module for module in network.modules() if isinstance(module, _RoundedInput)]
    for one in inputs:
        one.low.zero_()
        one.high.zero_()
        one.widens = True
    with torch.inference_mode():
        for start in range(0, len(items), _BATCH):
            network(torch.from_numpy(np.array(items[start : start + _BATCH])))  # a copy: a set's file is read-only
    for one in inputs:
        one.widens = False
