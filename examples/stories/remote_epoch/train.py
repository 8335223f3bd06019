"""Trains on photographs of a remote store: python train.py [--workers N] [--cache FOLDER]."""

import argparse
import io
import os
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

#: What the device takes for a batch, and the store for an answer.
DEVICE_SECONDS, STORE_MILLISECONDS = 0.015, 15
BATCH, EPOCHS = 8, 4


class Photographs(Dataset):
    """The photographs of a store; the network learns how bright each is."""

    def __init__(self, address: str, names: list[str], cache: Path | None) -> None:
        self.address, self.names, self.cache = address, names, cache
        if cache is not None:
            cache.mkdir(exist_ok=True)
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(self.read, names))

    def __len__(self) -> int:
        return len(self.names)

    def read(self, name: str) -> bytes:
        """Return a file, from the cache if it is there."""
        if self.cache is not None and (self.cache / name).exists():
            return (self.cache / name).read_bytes()
        with urllib.request.urlopen(f"{self.address}/{name}") as answer:
            content = answer.read()
        if self.cache is not None:
            part = self.cache / f".{name}.{os.getpid()}"
            part.write_bytes(content)
            part.rename(self.cache / name)
        return content

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the image, float32 (3, 128, 128), and its brightness."""
        image = Image.open(io.BytesIO(self.read(self.names[index])))
        image.load()
        values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).float() / 255
        values = values.reshape(128, 128, 3).permute(2, 0, 1)
        return values, values.mean()


class Network(torch.nn.Module):
    """A small network on an emulated device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(192, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return how bright the images are."""
        time.sleep(DEVICE_SECONDS)
        return self.layers(images).squeeze(1)


def train(address: str, options: argparse.Namespace) -> None:
    """Train some epochs, and print the loss as it goes."""
    names = sorted(path.name for path in Path("bucket").iterdir())
    data = Photographs(address, names, options.cache)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=options.workers, persistent_workers=True)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        total = 0.0
        for images, brightness in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(images), brightness)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    serve = [sys.executable, "store.py", "bucket", str(STORE_MILLISECONDS)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as store:
        try:
            train(f"http://127.0.0.1:{int(store.stdout.readline())}", options)
        finally:
            store.terminate()
