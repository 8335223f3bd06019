"""Trains on photographs that are turned, blurred and coloured at random: python train.py [--workers N] [--on-device]."""

import argparse
import random
import time
from pathlib import Path

import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch.utils.data import DataLoader, Dataset

#: What the device takes for a batch, and for the random changes of a batch where it makes them.
DEVICE_SECONDS, CHANGES_SECONDS = 0.010, 0.002
BATCH, EPOCHS = 6, 1


class Augment:
    """Changes an image at random, on the CPU."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return another image of the same size."""
        image = image.rotate(random.uniform(-15, 15), Image.Resampling.BICUBIC)
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(1, 2)))
        image = ImageEnhance.Color(image).enhance(random.uniform(0.7, 1.3))
        return ImageEnhance.Contrast(image).enhance(random.uniform(0.7, 1.3))


class Photographs(Dataset):
    """The photographs of a folder; the network learns how bright each is."""

    def __init__(self, folder: str, transform: Augment | None) -> None:
        self.paths = sorted(Path(folder).glob("*.jpg"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the image, float32 (3, 144, 144), and its brightness."""
        image = Image.open(self.paths[index])
        image.load()
        if self.transform is not None:
            image = self.transform(image)
        values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).float() / 255
        values = values.reshape(144, 144, 3).permute(2, 0, 1)
        return values, values.mean()


class Network(torch.nn.Module):
    """A small network on an emulated device."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.layers = torch.nn.Sequential(torch.nn.AvgPool2d(18), torch.nn.Flatten(), torch.nn.Linear(192, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return how bright the images are."""
        time.sleep(self.seconds)
        return self.layers(images).squeeze(1)


parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--on-device", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
data = Photographs("small", transform=None if options.on_device else Augment())
loader = DataLoader(
    data, batch_size=BATCH, shuffle=True, num_workers=options.workers, persistent_workers=options.workers > 0
)
model = Network(DEVICE_SECONDS + (CHANGES_SECONDS if options.on_device else 0.0))
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
