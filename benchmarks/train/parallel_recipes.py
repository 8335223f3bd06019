"""Trainings whose layers take a known time and no core: a device is emulated by a sleep. For `benchmarks.train.parallel`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

_WIDTH, _SAMPLES = 64, 64
#: Of a layer for each sample, seconds: forward; a backward pass takes twice as long.
_SECONDS = 0.00025


class _Asleep(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return values.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(2 * context.seconds)
        return gradients[0], None


class _Layer(torch.nn.Module):
    """A layer on an emulated device: the time grows with the samples."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self._linear, self._weight = torch.nn.Linear(_WIDTH, _WIDTH), weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values, later."""
        seconds = self._weight * _SECONDS * len(values)
        return _Asleep.apply(self._linear(values), seconds)  # type: ignore[no-any-return, no-untyped-call]


def _make(weights: Sequence[float]) -> dict[str, Any]:
    data = torch.utils.data.TensorDataset(torch.randn(_SAMPLES, _WIDTH), torch.randn(_SAMPLES, _WIDTH))
    return {
        "model": torch.nn.Sequential(*(_Layer(weight) for weight in weights)),
        "loss": lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]),
        "data": data,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        "batch_size": _SAMPLES,
    }


def make_even() -> dict[str, Any]:
    """Return a training of four layers that take as long each."""
    return _make((1, 1, 1, 1))


def make_uneven() -> dict[str, Any]:
    """Return a training whose first layer takes as long as three others."""
    return _make((3, 1, 1, 1, 1))
