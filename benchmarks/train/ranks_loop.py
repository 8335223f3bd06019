"""One rank of a training whose delays are injected; `benchmarks.train.ranks` starts as many of these as there are ranks.

    python -m benchmarks.train.ranks_loop FOLDER RANK RANKS STEPS CASE...

A CASE is `NAME:PHASE:KIND:SECONDS`: the last rank sleeps or computes for so long in each step of that phase. Each is recorded
into `FOLDER/NAME`. Ranks have one thread each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from headrace import train

_WIDTH, _BATCH = 768, 192


def sleep_or_compute(kind: str, seconds: float) -> None:
    """Take time, in one of two ways.

    Args:
        kind: `sleep`, or `compute`, which takes so much CPU time.
        seconds: How long.
    """
    if kind == "sleep":
        time.sleep(seconds)
    elif kind == "compute":
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass


class _Late(torch.autograd.Function):
    """Calls something in the forward and in the backward pass, in the middle of the model."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, late: Callable[[str], None]) -> torch.Tensor:
        context.late = late
        late("forward")
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        context.late("backward")
        return gradients[0], None


class _Model(torch.nn.Module):
    def __init__(self, late: Callable[[str], None]) -> None:
        super().__init__()
        self.first, self.last = (
            torch.nn.Sequential(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.BatchNorm1d(_WIDTH), torch.nn.ReLU())
            for _ in range(2)
        )
        self._late = late

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(_Late.apply(self.first(values), self._late))  # type: ignore[no-any-return, no-untyped-call]


def train_case(folder: Path, steps: int, late: Callable[[str], None]) -> None:
    """Record a training of some steps.

    Args:
        folder: To write.
        steps: How many.
        late: Called with the name of a phase while the training is in it.
    """
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(_Model(late))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer.register_step_pre_hook(lambda *_: late("optimizer"))

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(steps):
            late("wait")
            yield torch.randn(_BATCH, _WIDTH)

    with train.profile(batches(), output=folder) as loader:
        for batch in loader:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def main(arguments: list[str]) -> None:
    """Train each case, one after another."""
    folder, (rank, ranks, steps) = Path(arguments[0]), map(int, arguments[1:4])
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{(folder / 'group').absolute()}", rank=rank, world_size=ranks
    )
    for name, where, kind, seconds in (case.split(":") for case in arguments[4:]):

        def late(phase: str, where: str = where, kind: str = kind, seconds: float = float(seconds)) -> None:
            if rank == ranks - 1 and phase == where:
                sleep_or_compute(kind, seconds)

        train_case(folder / name, steps, late)
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
