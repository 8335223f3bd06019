"""One rank of trainings that exchange a set number of bytes; `benchmarks.train.communication` starts two of these.

    python -m benchmarks.train.communication_loop FOLDER RANK STEPS CASE...

A CASE is `NAME:WIDTH:SECONDS`: a model of one matrix of WIDTH x WIDTH, whose gradient is one bucket; rank 1 is late by so long
in each step before its backward pass. Each is recorded into `FOLDER/NAME`. Beside it `FOLDER/NAME-RANK.json` has what the loop
itself knows: when each backward pass was called, and when each of as many bare all-reduces of the same bytes began and ended,
half of them before the training and half after. Ranks have one thread each.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from headrace import train

RANKS = 2
_BATCH = 16


def train_case(folder: Path, rank: int, steps: int, width: int, seconds: float) -> list[float]:
    """Record a training of some steps, and return when each backward pass was called.

    Args:
        folder: To write.
        rank: Of this process.
        steps: How many.
        width: Of the matrix.
        seconds: By which rank 1 is late. It computes for so long: after a sleep a core is slow for a while.
    """
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(width, width, bias=False),
        gradient_as_bucket_view=True,  # else gradients are copied too, which a bare all-reduce does not do
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    values, called = torch.randn(_BATCH, width), []
    with train.profile([values] * steps, output=folder) as loader:
        for batch in loader:
            loss = model(batch).square().mean()
            until = time.monotonic() + seconds
            while rank == 1 and time.monotonic() < until:
                pass
            called.append(time.monotonic())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return called


def reduce_bare(width: int, times: int) -> list[tuple[float, float]]:
    """Return when all-reduces of one matrix began and ended, where nothing else is done."""
    values = torch.ones(width * width)
    found = []
    for _ in range(times):
        torch.distributed.barrier()
        began = time.monotonic()
        torch.distributed.all_reduce(values)
        found.append((began, time.monotonic()))
        values.fill_(1.0)
    return found


def main(arguments: list[str]) -> None:
    """Train each case, one after another."""
    folder, rank, steps = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{(folder / 'group').absolute()}", rank=rank, world_size=RANKS
    )
    for name, width, seconds in (case.split(":") for case in arguments[3:]):
        reduced = reduce_bare(int(width), steps // 2)
        called = train_case(folder / name, rank, steps, int(width), float(seconds))
        reduced += reduce_bare(int(width), steps // 2)
        (folder / f"{name}-{rank}.json").write_text(json.dumps({"reduced": reduced, "called": called}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
