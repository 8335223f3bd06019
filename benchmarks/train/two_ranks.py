"""Two processes that exchange gradients over gloo: a script for `headrace train`."""

from __future__ import annotations

import sys

import torch

from benchmarks.train.loops import Parts, plain


def work(rank: int, address: str) -> None:
    """Train as one of two."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    parts = Parts(lambda loader: loader)
    parts.model = torch.nn.parallel.DistributedDataParallel(parts.model)
    plain(parts)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (f"file://{sys.argv[1]}",), 2)
