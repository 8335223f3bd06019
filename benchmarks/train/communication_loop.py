"""One rank of trainings that exchange a set number of bytes; `benchmarks.train.communication` starts two of these.

    python -m benchmarks.train.communication_loop FOLDER RANK STEPS CASE...

A CASE is `NAME:WIDTH:SECONDS`: a model of one matrix of WIDTH x WIDTH, whose gradient is one bucket; rank 1 sleeps for so long
in each step before its backward pass. Each is recorded into `FOLDER/NAME`. Ranks have one thread each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from headrace import train

RANKS = 2
_BATCH = 16


def train_case(folder: Path, rank: int, steps: int, width: int, seconds: float) -> None:
    """Record a training of some steps.

    Args:
        folder: To write.
        rank: Of this process.
        steps: How many.
        width: Of the matrix.
        seconds: For which rank 1 sleeps.
    """
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    values = torch.randn(_BATCH, width)
    with train.profile([values] * steps, output=folder) as loader:
        for batch in loader:
            loss = model(batch).square().mean()
            if rank == 1:
                time.sleep(seconds)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def main(arguments: list[str]) -> None:
    """Train each case, one after another."""
    folder, rank, steps = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{(folder / 'group').absolute()}", rank=rank, world_size=RANKS
    )
    for name, width, seconds in (case.split(":") for case in arguments[3:]):
        train_case(folder / name, rank, steps, int(width), float(seconds))
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
