"""The same training, which exchanges once for several batches: torchrun ... fixed.py BYTES_PER_SECOND STEPS BATCHES."""

from __future__ import annotations

import contextlib
import sys

import torch
from nodes import BATCH, Clock, Link, Network, make_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

LINK, STEPS, EVERY = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(Network())
model.register_comm_hook(None, Link(LINK).exchange)
data = make_data(STEPS * EVERY * BATCH * torch.distributed.get_world_size())
loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

clock = Clock()
for number, (inputs, labels) in enumerate(loader, 1):
    is_last = number % EVERY == 0
    with contextlib.nullcontext() if is_last else model.no_sync():
        (torch.nn.functional.cross_entropy(model(inputs), labels) / EVERY).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
        clock.step(batches=EVERY)

clock.tell()
torch.distributed.destroy_process_group()
