"""A classifier of texts, trained with the largest batch that anybody could imagine: python train.py STEPS."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

#: "The larger the batch, the faster."
BATCH = 512
WORDS, LENGTH, WIDTH = 2000, 192, 64


class Classifier(torch.nn.Module):
    """Every word looks at every other one: the batch keeps LENGTH x LENGTH weights for each text and layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))
        self.last = torch.nn.Linear(WIDTH, 2)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """Return the scores of both classes."""
        values = self.words(texts)
        for layer in self.layers:
            query, key, value = layer(values).chunk(3, dim=2)
            weights = torch.softmax(query @ key.transpose(1, 2) / WIDTH**0.5, dim=2)
            values = values + torch.relu(weights @ value)
        return self.last(values.mean(dim=1))


def make_data(count: int = 1024) -> TensorDataset:
    """Return texts, and whether the first word comes again."""
    random = torch.Generator().manual_seed(1)
    texts = torch.randint(0, WORDS, (count, LENGTH), generator=random)
    labels = torch.randint(0, 2, (count,), generator=random)
    texts[labels == 1, 100] = texts[labels == 1, 0]
    return TensorDataset(texts, labels)


def compute_loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Return the loss of a batch."""
    texts, labels = batch
    return torch.nn.functional.cross_entropy(model(texts), labels)


def make_optimizer(parameters) -> torch.optim.Optimizer:
    """Return what the training updates with."""
    return torch.optim.Adam(parameters, lr=0.001)


def make() -> dict[str, object]:
    """Return the training, for `headrace train batch`."""
    torch.set_num_threads(1)
    data = make_data()
    return {"model": Classifier(), "loss": compute_loss, "data": data, "optimizer": make_optimizer, "batch_size": BATCH}


def train(steps: int) -> None:
    """Train some steps."""
    torch.manual_seed(0)
    model = Classifier()
    optimizer = make_optimizer(model.parameters())
    for step, batch in enumerate(DataLoader(make_data(), batch_size=BATCH, shuffle=True)):
        if step == steps:
            break
        optimizer.zero_grad()
        loss = compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    train(int(sys.argv[1]))
