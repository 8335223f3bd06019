"""A training for torchrun whose computing and exchange are set: `scaling_job.py WIDTH BATCH [SETTING]`.

A SETTING is one that `headrace train scale` proposes: `accumulate=8` (under `no_sync`), `gradients=float16`,
`bucket=4194304B`.
"""

from __future__ import annotations

import contextlib
import sys

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

_LAYERS = 4
#: More than any benchmark takes: it is ended after some steps.
_BATCHES = 20_000


def main(width: int, batch: int, setting: str = "") -> None:
    """Train until somebody ends it."""
    key, _, value = setting.partition("=")
    accumulate = int(value) if key == "accumulate" else 1
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(_LAYERS)]
    buckets = {"bucket_cap_mb": int(value.removesuffix("B")) / 2**20} if key == "bucket" else {}
    model = DistributedDataParallel(torch.nn.Sequential(*layers), **buckets)
    if key == "gradients":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(torch.distributed.get_rank() + 1)  # each rank has its own data
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
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
