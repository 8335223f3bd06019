"""One rank of trainings that exchange a set number of bytes; `benchmarks.train.communication` starts two of these.

    python -m benchmarks.train.communication_loop FOLDER RANK STEPS CASE...

A CASE is `NAME:WIDTH:SECONDS`: a model of one matrix of WIDTH x WIDTH, whose gradient is one bucket; rank 1 is late by so long
in each step before its backward pass. Each is recorded into `FOLDER/NAME`. Beside it `FOLDER/NAME-RANK.json` has what the loop
itself knows: when each backward pass was called, and when a bare all-reduce of the same bytes began and ended behind each step.
Rank 1 is as late there, and each rank scales the bytes into a bucket first, as DistributedDataParallel does. Ranks have one
thread each.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from headrace import train

RANKS = 2
_BATCH = 16


def train_case(folder: Path, rank: int, steps: int, width: int, seconds: float) -> dict[str, Any]:
    """Record a training of some steps; return when each backward pass was called, and when bare all-reduces began and ended.

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
        gradient_as_bucket_view=True,  # else the sums are copied back too, which a bare all-reduce does not do
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    values, called, reduced = torch.randn(_BATCH, width), [], []
    gradient, bucket = torch.ones(width * width), torch.empty(width * width)
    with train.profile([values] * steps, output=folder) as loader:
        for batch in loader:
            loss = model(batch).square().mean()
            _be_late(rank, seconds)
            called.append(time.monotonic())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.distributed.barrier()
            _be_late(rank, seconds)
            gradient.fill_(1.0)  # as near to the core as one that was just computed
            reduced.append(_reduce_bare(gradient, bucket))
    return {"called": called, "reduced": reduced}


def _be_late(rank: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while rank == 1 and time.monotonic() < until:
        pass


def _reduce_bare(gradient: torch.Tensor, bucket: torch.Tensor) -> tuple[float, float]:
    """Return when it began and ended; called as DistributedDataParallel does, past the functions of Python around it."""
    group = torch.distributed.group.WORLD
    began = time.monotonic()
    torch.mul(gradient, 1 / RANKS, out=bucket)
    group.allreduce([bucket]).wait()
    return began, time.monotonic()


def main(arguments: list[str]) -> None:
    """Train each case, one after another."""
    folder, rank, steps = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{(folder / 'group').absolute()}", rank=rank, world_size=RANKS
    )
    for name, width, seconds in (case.split(":") for case in arguments[3:]):
        known = train_case(folder / name, rank, steps, int(width), float(seconds))
        (folder / f"{name}-{rank}.json").write_text(json.dumps(known))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
