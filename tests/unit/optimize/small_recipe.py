"""A recipe as a user writes it: bars at four angles, and a network of two convolutions that tells them apart."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

SIDE, CLASSES = 8, 4


def make_items(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 (count, 1, 8, 8) bars in noise, and int64 (count,) their angles."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    rows, columns = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    angles = labels * np.pi / CLASSES
    distance = np.abs(
        rows * np.cos(angles)[:, None, None]
        + columns * np.sin(angles)[:, None, None]
        + random.uniform(-1, 1, (count, 1, 1))
    )
    return ((distance < 1.2) + 0.2 * random.standard_normal((count, SIDE, SIDE))).astype(np.float32)[:, None], labels


class Bars:
    """Builds, trains and scores."""

    example = np.zeros((1, 1, SIDE, SIDE), np.float32)
    names = ("across", "falling", "upright", "rising")

    def __init__(self) -> None:
        self.num_fits = 0
        self.spoil_after: int | None = None
        """Calls of fit after which training is no good."""
        self._weights: dict[str, torch.Tensor] = {}

    def build(self) -> nn.Module:
        """Return the trained network."""
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
        )  # fmt: skip
        if not self._weights:
            self._train(network, 60)
            self._weights = copy.deepcopy(network.state_dict())  # else training it further would change them
        network.load_state_dict(self._weights)
        return network.eval()

    def fit(self, network: nn.Module, teacher: nn.Module | None = None) -> None:
        """Train further; a teacher stands in for half of the training, and does not help."""
        self.num_fits += 1
        self._train(network, 15 if teacher else 30)
        if self.spoil_after is not None and self.num_fits > self.spoil_after:
            with torch.no_grad():
                network[-1].weight.zero_()

    def evaluate(self, network: nn.Module) -> float:
        """Return the share of right answers."""
        inputs, labels = make_items(400, seed=2)
        with torch.inference_mode():
            return float((network(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean())

    def _train(self, network: nn.Module, steps: int) -> None:
        inputs, labels = make_items(512, seed=1)
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
        network.train()
        for _ in range(steps):
            loss = nn.functional.cross_entropy(network(torch.from_numpy(inputs)), torch.from_numpy(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        network.eval()


recipe = Bars()
