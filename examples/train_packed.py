"""Trains a small network to name photographs, from packed shards: python train_packed.py data photos/labels.jsonl.

With `--files photos` the same loop reads the files by PyTorch's DataLoader: only the line that makes `loader` is another.
Started again with `--checkpoint FILE`, it goes on behind the last batch of which the file knows.
"""

import argparse
import json
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

import headrace as hr
from headrace.store.loading_work import LoadedSample

BATCH = 16


def decode(content: bytes) -> torch.Tensor:
    """Return an image as float32 (3, 32, 32) from 0 to 1."""
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
    small = cv2.resize(image, (32, 32), interpolation=cv2.INTER_AREA)
    return torch.from_numpy(small).permute(2, 0, 1).float() / 255


class Labelled:
    """Makes an image and its number of a packed sample; an object of a module, so processes can have it, too."""

    def __init__(self, labels: dict[str, int]) -> None:
        self.labels = labels

    def __call__(self, sample: LoadedSample) -> tuple[torch.Tensor, int]:
        """Return an image and what it shows."""
        return decode(next(iter(sample.parts.values()))), self.labels[sample.key]


class Files(Dataset):
    """The same from a folder of files, as it is usually written."""

    def __init__(self, folder: str, labels: dict[str, int]) -> None:
        self.paths, self.labels = sorted(Path(folder).glob("0*")), labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image and what it shows."""
        path = self.paths[index]
        return decode(path.read_bytes()), self.labels[path.stem]


def main() -> None:
    """Train, and print loss and share of right answers of each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("labels")
    parser.add_argument("--files")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, help="leave after so many batches")
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    records = [json.loads(line) for line in Path(options.labels).read_text().splitlines()]
    names = sorted({record["label"] for record in records})
    labels = {Path(record["file"]).stem: names.index(record["label"]) for record in records}

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, len(names)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    if options.files:
        loader = DataLoader(Files(options.files, labels), BATCH, shuffle=True)
    else:
        loader = hr.loader(options.data, BATCH, transform=Labelled(labels), collate=default_collate, seed=1)
    first = steps = 0
    if options.checkpoint and options.checkpoint.exists():
        kept = torch.load(options.checkpoint)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        loader.resume(kept["loader"])
        first = loader.epoch

    for epoch in range(first, options.epochs):
        losses, right, seen = 0.0, 0, 0
        for images, wanted in loader:
            answers = model(images)
            loss = torch.nn.functional.cross_entropy(answers, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses, right = losses + loss.item() * len(wanted), right + int((answers.argmax(1) == wanted).sum())
            seen, steps = seen + len(wanted), steps + 1
            if steps == options.steps:
                break
        print(f"epoch {epoch}: {seen} images, loss {losses / seen:.3f}, {right / seen:.0%} right")
        if steps == options.steps:
            break
    if options.checkpoint:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state()}
        torch.save(kept, options.checkpoint)


if __name__ == "__main__":
    main()
