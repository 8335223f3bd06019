"""A training for torchrun whose computing and exchange are set: `scaling_job.py WIDTH BATCH ACCUMULATE`."""

from __future__ import annotations

import contextlib
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

_LAYERS = 4
#: More than any benchmark takes: it is ended after some steps.
_BATCHES = 20_000


def main(width: int, batch: int, accumulate: int) -> None:
    """Train until somebody ends it."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(_LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    values = torch.randn(batch, width)
    loader = torch.utils.data.DataLoader([values] * _BATCHES, batch_size=None)
    for number, inputs in enumerate(loader, 1):
        is_last = number % accumulate == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            model(inputs).square().mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
