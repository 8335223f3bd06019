"""One of four nodes, which train on records that are spread over all of them: python train.py [--own-part].

A batch is drawn from all records, so three of four lie on another node. With --own-part a node draws from its own ones: they
were shuffled over the nodes once, before the training, so each node has a fair sample.
"""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, Subset

NODES, HERE = 4, 0
#: What a record of another node takes to come, and what the device takes for a batch.
NETWORK_SECONDS, DEVICE_SECONDS = 0.008, 0.015
RECORDS, BATCH, FEATURES = 640, 16, 512
FOLDER = Path("records")


class Records(Dataset):
    """Records of all nodes; those of other nodes come over the network."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return float32 (512,)."""
        if index % NODES != HERE:
            time.sleep(NETWORK_SECONDS)
        content = (FOLDER / f"{index % 100}.bin").read_bytes()
        return torch.frombuffer(bytearray(content), dtype=torch.float32)


class Network(torch.nn.Module):
    """A small network on an emulated device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Return a number for each record."""
        time.sleep(DEVICE_SECONDS)
        return self.layer(records)


parser = argparse.ArgumentParser()
parser.add_argument("--own-part", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
FOLDER.mkdir(exist_ok=True)
for number in range(100):
    (FOLDER / f"{number}.bin").write_bytes(torch.randn(FEATURES).numpy().tobytes())

data = Records()
if options.own_part:
    data = Subset(data, range(HERE, RECORDS, NODES))
loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

for _ in range(NODES if options.own_part else 1):  # as many batches
    for records in loader:
        loss = (model(records) - records.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
