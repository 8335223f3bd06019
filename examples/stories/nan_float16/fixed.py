"""The same training, normalised in float32: python fixed.py DTYPE, float32 or float16."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


class Normalise(torch.nn.Module):
    """Bring each image to mean 0 and variance 1, in one pass over its numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised images."""
        x = x.float()
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        variance = (x * x).mean(dim=(1, 2, 3), keepdim=True) - mean * mean
        return (x - mean) / (variance + 1e-5).sqrt()


def make_network() -> torch.nn.Module:
    """Return a network whose first layer sees pixels from 0 to 255, as they come from the file."""
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 8, 3, stride=2)
    torch.nn.init.uniform_(first.weight, -0.1, 0.3)
    layers = [first, Normalise(), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, stride=2), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(72, 2))


def make_data(count: int = 512) -> TensorDataset:
    """Return photographs with a bright half, and which half it is."""
    random = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (count,), generator=random)
    images = torch.randint(0, 200, (count, 3, 16, 16), generator=random).float()
    images[labels == 0, :, :, :8] += 55
    images[labels == 1, :, :, 8:] += 55
    return TensorDataset(images, labels)


def compute_loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the loss of a batch."""
    images, labels = batch
    return torch.nn.functional.cross_entropy(model(images), labels)


def make_optimizer(parameters) -> torch.optim.Optimizer:
    """Return what the training updates with."""
    return torch.optim.Adam(parameters, lr=0.003)


def make() -> dict[str, object]:
    """Return the training, for `headrace train check`."""
    return {"model": make_network(), "loss": compute_loss, "data": make_data(), "optimizer": make_optimizer}


def train(dtype: torch.dtype) -> None:
    """Train two epochs, and print the loss as it goes."""
    model = make_network()
    optimizer = make_optimizer(model.parameters())
    loader = DataLoader(make_data(), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0))
    for epoch in range(2):
        losses = []
        for batch in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                loss = compute_loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: mean loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(getattr(torch, sys.argv[1]))
