"""Trainings that `benchmarks.train.batch` searches and checks, as functions that make recipes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.train import Recipe

_COUNT, _SIZE = 4, 4
#: Where the targets of a sample end.
_PAD = -100

Accumulate = Callable[[Any, Sequence[Any]], object]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


# --- memory


def make_hungry() -> Recipe:
    """Return a training of which a sample keeps about 40 MB for the backward pass."""
    layers = [layer for _ in range(10) for layer in (torch.nn.Linear(1024, 1024), torch.nn.Tanh())]
    data = torch.utils.data.TensorDataset(torch.randn(64, 512, 1024))
    return Recipe(model=torch.nn.Sequential(*layers), loss=_mean, data=data, optimizer=_sgd, batch_size=64)


def _mean(model: Any, batch: Any) -> torch.Tensor:
    found: torch.Tensor = model(batch[0]).square().mean()
    return found


# --- search


def make_narrow() -> Recipe:
    """Return a training whose small batches cost hardly less than large ones."""
    return _blocks(3, 64, 128, 64, 2)


def make_pictures() -> Recipe:
    """Return a training of convolutions, whose activations leave the caches as batches grow."""
    return _pictures(64, 32)


SEARCHED = ("make_narrow", "make_pictures")

# --- accumulation


def _loss(model: Any, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten(), ignore_index=_PAD)


class _OverTokens(torch.nn.Module):
    """Batch normalisation of (samples, tokens, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(12)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs, normalised."""
        found: torch.Tensor = self.norm(inputs.transpose(1, 2)).transpose(1, 2)
        return found


def _accumulated(*more: torch.nn.Module, uneven: bool = False, accumulate: Accumulate | None = None) -> Recipe:
    targets = torch.randint(0, 3, (_COUNT * _SIZE, 5))
    for number, row in enumerate(targets if uneven else ()):  # sample n has 1 to 4 targets, fewer at the start
        row[1 + number * 4 // (_COUNT * _SIZE) :] = _PAD
    data = torch.utils.data.TensorDataset(torch.randn(_COUNT * _SIZE, 5, 6), targets)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), *more, torch.nn.Tanh(), torch.nn.Linear(12, 3))
    return Recipe(model=model, loss=_loss, data=data, optimizer=_sgd, accumulate=accumulate)


def _undivided(model: Any, batches: Sequence[Any]) -> None:
    for batch in batches:
        _loss(model, batch).backward()


def _without_the_last(model: Any, batches: Sequence[Any]) -> None:
    for batch in batches[:-1]:
        (_loss(model, batch) / len(batches)).backward()


def _divided(model: Any, batches: Sequence[Any]) -> None:
    for batch in batches:
        (_loss(model, batch) / len(batches)).backward()


def _by_tokens(model: Any, batches: Sequence[Any]) -> None:
    counts = [int((targets != _PAD).sum()) for _, targets in batches]
    for batch, count in zip(batches, counts, strict=True):
        (_loss(model, batch) * count / sum(counts)).backward()


def _synced_once(model: Any, batches: Sequence[Any]) -> None:
    with model.no_sync():
        _divided_by(model, batches[:-1], len(batches))
    _divided_by(model, batches[-1:], len(batches))


def _divided_by(model: Any, batches: Sequence[Any], count: int) -> None:
    for batch in batches:
        (_loss(model, batch) / count).backward()


#: {what has to be named: makes a training with that mistake}; the exchanges of DistributedDataParallel are counted in each.
PLANTED: dict[str, Callable[[], Recipe]] = {
    "mean of means": lambda: _accumulated(uneven=True, accumulate=_synced_means),
    "missing division": lambda: _accumulated(accumulate=_synced_undivided),
    "batch norm": lambda: _accumulated(_OverTokens(), accumulate=_synced_once),
    "random numbers": lambda: _accumulated(torch.nn.Dropout(0.3), accumulate=_synced_once),
    "skipped micro-batch": lambda: _accumulated(accumulate=_without_the_last_synced),
    "no_sync missing": lambda: _accumulated(accumulate=_divided),
}
RIGHT: tuple[Callable[[], Recipe], ...] = (
    lambda: _accumulated(accumulate=_synced_once),
    lambda: _accumulated(torch.nn.LayerNorm(12), accumulate=_synced_once),
    lambda: _accumulated(uneven=True, accumulate=_synced_by_tokens),
)


def _with_one_exchange(accumulate: Accumulate, model: Any, batches: Sequence[Any]) -> None:
    """Accumulate without exchanges, and end with a backward pass that adds nothing and exchanges."""
    with model.no_sync():
        accumulate(model, batches)
    (_loss(model, batches[-1]) * 0.0).backward()


def _synced_means(model: Any, batches: Sequence[Any]) -> None:
    _with_one_exchange(_divided, model, batches)


def _synced_undivided(model: Any, batches: Sequence[Any]) -> None:
    _with_one_exchange(_undivided, model, batches)


def _without_the_last_synced(model: Any, batches: Sequence[Any]) -> None:
    _with_one_exchange(_without_the_last, model, batches)


def _synced_by_tokens(model: Any, batches: Sequence[Any]) -> None:
    _with_one_exchange(_by_tokens, model, batches)


# --- checkpointing


class _Block(torch.nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, inner), torch.nn.GELU(), torch.nn.Linear(inner, width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values with something added."""
        return values + self.layers(values)


def _blocks(count: int, width: int, inner: int, samples: int, tokens: int) -> Recipe:
    data = torch.utils.data.TensorDataset(torch.randn(samples, tokens, width))
    model = torch.nn.Sequential(*(_Block(width, inner) for _ in range(count)))
    return Recipe(model=model, loss=_mean, data=data, optimizer=_sgd, batch_size=samples)


def make_deep() -> Recipe:
    """Return a training of twelve narrow blocks."""
    return _blocks(12, 256, 1024, 16, 128)


def make_wide() -> Recipe:
    """Return a training of four wide blocks."""
    return _blocks(4, 512, 2048, 16, 128)


def _pictures(samples: int, side: int) -> Recipe:
    channels = (3, 16, 32, 64, 64)
    layers = [
        torch.nn.Sequential(
            torch.nn.Conv2d(before, after, 3, stride=2, padding=1), torch.nn.GELU(),
            torch.nn.Conv2d(after, after, 3, padding=1), torch.nn.GELU(),
        )
        for before, after in itertools.pairwise(channels)
    ]  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.randn(samples, 3, side, side))
    return Recipe(model=torch.nn.Sequential(*layers), loss=_mean, data=data, optimizer=_sgd, batch_size=samples)


def make_images() -> Recipe:
    """Return a training of pairs of convolutions, whose first ones keep most."""
    return _pictures(16, 128)


CHECKPOINTED = ("make_deep", "make_wide", "make_images")
