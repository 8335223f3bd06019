"""A training as people write it: torchrun --standalone --nproc-per-node NODES train.py BYTES_PER_SECOND STEPS."""

from __future__ import annotations

import sys

import torch
from nodes import BATCH, Clock, Link, Network, make_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

LINK, STEPS = float(sys.argv[1]), int(sys.argv[2])

torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(Network())
model.register_comm_hook(None, Link(LINK).exchange)
data = make_data(STEPS * BATCH * torch.distributed.get_world_size())
loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

clock = Clock()
for inputs, labels in loader:
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step(batches=1)

clock.tell()
torch.distributed.destroy_process_group()
