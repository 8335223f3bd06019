"""The same training, each node with its own part of the data: torchrun --standalone --nproc-per-node NODES fixed.py STEPS."""

from __future__ import annotations

import sys

import torch
from nodes import BATCH, Network, make_data, validate
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

STEPS = int(sys.argv[1])

torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(Network())
data = make_data(6144, seed=2)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

step = epoch = 0
while step < STEPS:
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            break
    epoch += 1

if torch.distributed.get_rank() == 0:
    print(f"an epoch has {len(loader)} steps; validation loss after {STEPS} steps: {validate(model.module):.4f}")
torch.distributed.destroy_process_group()
