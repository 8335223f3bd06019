"""Loops as people write them, on a model of a few layers, for benchmarks of the recorder."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

#: Batches of one pass through a loader.
BATCHES = 20


@dataclass
class Parts:
    """What a loop works on.

    Attributes:
        watch: Wraps a loader, or gives it back as it is where nothing is recorded.
    """

    watch: Callable[[Any], Iterable[Any]]

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        self.data = torch.utils.data.TensorDataset(torch.randn(16 * BATCHES, 64), torch.randint(0, 10, (16 * BATCHES,)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.criterion = torch.nn.CrossEntropyLoss()
        self.loader = self.watch(torch.utils.data.DataLoader(self.data, batch_size=16, shuffle=True))

    def learn(self, images: Any, labels: Any) -> None:
        """Forward and backward."""
        self.criterion(self.model(images), labels).backward()

    def update(self) -> None:
        """The optimizer."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def look(self, loader: Iterable[Any]) -> None:
        """Validate."""
        with torch.no_grad():
            for images, _ in loader:
                self.model(images)


def plain(parts: Parts) -> int:
    """One batch, one update; like every loop here it returns its number of steps."""
    for images, labels in parts.loader:
        parts.learn(images, labels)
        parts.update()
    return BATCHES


def accumulation(parts: Parts) -> int:
    """Four batches for an update."""
    for number, (images, labels) in enumerate(parts.loader, 1):
        parts.learn(images, labels)
        if number % 4 == 0:
            parts.update()
    return BATCHES // 4


def bfloat16(parts: Parts) -> int:
    """Autocast."""
    for images, labels in parts.loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = parts.criterion(parts.model(images).float(), labels)
        loss.backward()
        parts.update()
    return BATCHES


def validation(parts: Parts) -> int:
    """Validation with another loader after each epoch, and with a batch that was kept, between steps."""
    other = parts.watch(torch.utils.data.DataLoader(parts.data, batch_size=64))
    kept = parts.data[:32]
    for _ in range(2):
        for number, (images, labels) in enumerate(parts.loader):
            parts.learn(images, labels)
            parts.update()
            if number % 5 == 4:
                parts.look([kept])
        parts.look(other)
    return 2 * BATCHES


def exception(parts: Parts) -> int:
    """Every fifth step raises in its forward pass, and the loop goes on."""
    for number, (images, labels) in enumerate(parts.loader):
        try:
            parts.learn(images[:, :5] if number % 5 == 4 else images, labels)
        except RuntimeError:
            continue
        parts.update()
    return BATCHES


def epochs(parts: Parts) -> int:
    """Four epochs."""
    for _ in range(4):
        plain(parts)
    return 4 * BATCHES


def background(parts: Parts) -> int:
    """A thread asks the loader, the training thread asks a queue."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=2)

    def load() -> None:
        for batch in itertools.chain(parts.loader, [None]):
            ready.put(batch)

    thread = threading.Thread(target=load)
    thread.start()
    while (batch := ready.get()) is not None:
        parts.learn(*batch)
        parts.update()
    thread.join()
    return BATCHES


#: Those that run in this process; `two_ranks.py` is the eighth.
LOOPS: dict[str, Callable[[Parts], int]] = {
    loop.__name__: loop for loop in (plain, accumulation, bfloat16, validation, exception, epochs, background)
}
