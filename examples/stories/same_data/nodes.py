"""What both trainings share: the data, a model whose device is emulated, and its validation."""

from __future__ import annotations

import time

import torch
from torch.utils.data import TensorDataset

#: What the device of a node takes for a batch. Real nodes have one each; here they share the cores, so it sleeps.
DEVICE_SECONDS = 0.02
INPUTS, CLASSES = 64, 10
BATCH = 16


class Network(torch.nn.Module):
    """A small network on an emulated device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(INPUTS, 128), torch.nn.ReLU(), torch.nn.Linear(128, CLASSES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        if self.training:
            time.sleep(DEVICE_SECONDS)
        return self.layers(inputs)


def make_data(count: int, seed: int) -> TensorDataset:
    """Return inputs and their classes: which of ten directions is nearest, in noise."""
    directions = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, INPUTS, generator=random)
    noise = 4 * torch.randn(count, CLASSES, generator=random)
    return TensorDataset(inputs, (inputs @ directions + noise).argmax(dim=1))


def validate(model: torch.nn.Module) -> float:
    """Return the mean loss over data that no training sees."""
    inputs, labels = make_data(4000, seed=3).tensors
    model.eval()
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(inputs), labels).item()
