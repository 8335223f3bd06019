"""What the trainings share: a model whose device is emulated, its data, and the link between nodes, which is emulated too."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils.data import TensorDataset

#: What the device of a node takes for a batch. Real nodes have one each; here they share the cores, so it sleeps.
DEVICE_SECONDS = 0.02
INPUTS, HIDDEN, CLASSES = 64, 1000, 190
BATCH = 16


class Network(torch.nn.Module):
    """A small network on an emulated device: 1 MB of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        time.sleep(DEVICE_SECONDS)
        return self.layers(inputs)


class Link:
    """The wire of each node: the exchange is that of gloo, and takes as much longer as a ring over such wires."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._sender = ThreadPoolExecutor(1)

    def exchange(self, _: object, bucket: Any) -> Any:
        """Send a bucket, beside the backward pass; a communication hook of DistributedDataParallel."""
        done: Any = torch.futures.Future()
        self._sender.submit(self._send, bucket.buffer(), done)
        return done

    exchange.__annotations__.clear()  # DistributedDataParallel refuses text, which they are here

    def _send(self, values: torch.Tensor, done: Any) -> None:
        ranks = torch.distributed.get_world_size()
        moved = 2 * (ranks - 1) / ranks * values.numel() * values.element_size()
        torch.distributed.all_reduce(values.div_(ranks))  # returns when all have come
        time.sleep(moved / self._bytes_per_second)
        done.set_result(values)


class Clock:
    """Says how many samples a second all nodes learn from, without the first steps."""

    SKIPPED = 4

    def __init__(self) -> None:
        self._batches = self._steps = 0
        self._began = 0.0

    def step(self, batches: int) -> None:
        """Count an update of each node, and its batches."""
        self._steps += 1
        if self._steps == self.SKIPPED:
            self._began = time.perf_counter()
        elif self._steps > self.SKIPPED:
            self._batches += batches

    def tell(self) -> None:
        """Print the rate, on the first node."""
        if torch.distributed.get_rank() == 0:
            samples = self._batches * BATCH * torch.distributed.get_world_size()
            print(f"{samples / (time.perf_counter() - self._began):.0f} samples/s")


def make_data(count: int) -> TensorDataset:
    """Return inputs and classes."""
    random = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(count, INPUTS, generator=random), torch.randint(0, CLASSES, (count,), generator=random)
    )
