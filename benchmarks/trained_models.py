"""ResNet-18 and MobileNetV2, trained to name the photograph that a crop was cut from, as recipes for `headrace optimize`.

    python -m benchmarks.trained_models [resnet18] [mobilenetv2]

trains what is not in the cache (half an hour each on two cores) and says how often each is right on crops that it did not see,
of the regions it was trained on. `headrace optimize benchmarks.trained_models:resnet18 ...` does the same where it has to.

How this works: crops of the training regions with a short side of 256 pixels are kept. An epoch sees each crop once, changed
at random as `tools/train_scenes.py` does it: part and scale, flip, rotation, colour, light, blur, grey. Most epochs look at 128
pixels, the last ones at 192: a part of a crop is shown larger than the whole is at the 224 pixels at which the network works
later, and training at a smaller size makes up for that (H. Touvron et al., "Fixing the train-test resolution discrepancy",
NeurIPS 2019). One seed decides everything, on one machine with one number of threads.

`HEADRACE_TRAINED_MODELS` names the folder of the cache, by default `benchmarks/.cache/trained`.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from benchmarks import networks
from benchmarks.paths import CACHE, digest
from headrace.runs.cpu_features import BFLOAT16_FLAGS, cpu_flags
from headrace.samples.catalogue import NAMES
from tools import train_scenes
from tools.train_scenes import augment, normalise

FOLDER = Path(os.environ.get("HEADRACE_TRAINED_MODELS", CACHE / "trained"))
PIXELS = 224
EARLY_PIXELS, LATE_PIXELS = 128, 192
TRAIN_CROPS, EVALUATION_CROPS = 1980, 660
EVALUATION_PIXELS, EVALUATION_VIEWS = 160, 2
"""Each crop is judged in two views changed as in training: every network names nearly all whole crops."""
SEED = 1
EPOCHS = 16
"""Of the first training."""
BATCH = 32
RECIPE_VERSION = 2  # part of the cache key: raise it when the same seed would give other weights
#: Softening and weight of a teacher's answers (G. Hinton et al., "Distilling the Knowledge in a Neural Network", 2015).
TEMPERATURE, TEACHER_WEIGHT = 4.0, 0.7


@dataclass(frozen=True, slots=True)
class Crops:
    """Pictures with their names."""

    pictures: list[np.ndarray]
    """uint8 (height, width, 3), RGB, with a short side of 256."""
    labels: np.ndarray
    """int64 (items,)."""


@cache
def load_crops(count: int, seed: int) -> Crops:
    """Return crops of the training regions, cut once and kept; half were scaled with a filter against aliasing."""
    path = FOLDER / f"crops-{digest([RECIPE_VERSION, count, seed])}.npz"
    if not path.exists():
        _say(f"cutting {count} crops")
        images, labels = train_scenes.load_crops(count, seed)
        pictures = {f"p{number:05d}": np.asarray(image) for number, image in enumerate(images)}
        _keep(path, lambda file: np.savez(file, labels=labels.numpy(), **pictures))
    with np.load(path) as kept:
        return Crops([kept[name] for name in sorted(kept.files) if name != "labels"], kept["labels"])


class Recipe:
    """How one network is made, trained further and scored; what `headrace optimize` asks of a trainable model.

    Args:
        make: The network with random weights, for a number of classes.
        learning_rate: Highest of the first training.
        fit_epochs: Of one fine-tuning.
    """

    names = NAMES
    example = np.zeros((1, 3, PIXELS, PIXELS), np.float32)

    def __init__(self, make: Callable[[int], networks.Network], learning_rate: float, fit_epochs: int) -> None:
        self.name = make.__name__
        self._make = make
        self._learning_rate = learning_rate
        self._fit_epochs = fit_epochs

    @property
    def path(self) -> Path:
        """The trained weights, whether they are there yet or not."""
        key = [RECIPE_VERSION, SEED, EPOCHS, BATCH, TRAIN_CROPS, EARLY_PIXELS, LATE_PIXELS, self._learning_rate]
        return FOLDER / f"{self.name}-{digest(key)}.pt"

    def build(self) -> networks.Network:
        """Return the trained network; trains it, once."""
        torch.manual_seed(SEED)
        network = self._make(len(NAMES))
        if not self.path.exists():
            _say(f"training {self.name}, {EPOCHS} epochs")
            _train(network, _sizes(EPOCHS), self._learning_rate, seed=SEED)
            _keep(self.path, lambda file: torch.save(network.state_dict(), file))
        network.load_state_dict(torch.load(self.path, weights_only=True))
        return network.eval()

    def fit(self, network: networks.Network, teacher: torch.nn.Module | None = None) -> None:
        """Train a changed network further, in place.

        Args:
            network: Pruned, say.
            teacher: Whose answers to learn from as well; None: the labels alone.
        """
        torch.manual_seed(SEED)
        _train(network, _sizes(self._fit_epochs), self._learning_rate / 2, seed=SEED + 1, teacher=teacher)
        network.eval()

    def evaluate(self, network: torch.nn.Module) -> float:
        """Return the share of right answers to views of crops of the training regions that training did not see."""
        held = load_crops(EVALUATION_CROPS, SEED + 1)
        rng = random.Random(SEED + 2)
        right = 0
        with torch.inference_mode():
            for start in [*range(0, len(held.labels), BATCH)] * EVALUATION_VIEWS:
                crops = held.pictures[start : start + BATCH]
                batch = normalise([augment(Image.fromarray(one), EVALUATION_PIXELS, rng) for one in crops])
                right += int((network(batch).argmax(1).numpy() == held.labels[start : start + BATCH]).sum())
        return right / (EVALUATION_VIEWS * len(held.labels))


resnet18 = Recipe(networks.resnet18, 2e-3, fit_epochs=8)
mobilenetv2 = Recipe(networks.mobilenetv2, 3e-3, fit_epochs=16)
RECIPES = {recipe.name: recipe for recipe in (resnet18, mobilenetv2)}


def _sizes(epochs: int) -> list[int]:
    """Return the pixels of each epoch: most look at few."""
    early = epochs * 3 // 4
    return [EARLY_PIXELS] * early + [LATE_PIXELS] * (epochs - early)


def _train(
    network: networks.Network,
    sizes: list[int],
    learning_rate: float,
    *,
    seed: int,
    teacher: torch.nn.Module | None = None,
) -> None:
    """Train in place, one epoch for each size of picture."""
    data = load_crops(TRAIN_CROPS, SEED)
    rng = random.Random(seed)
    network.train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.02)
    steps = len(sizes) * (len(data.labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=learning_rate, total_steps=steps)
    began = time.monotonic()
    for epoch, pixels in enumerate(sizes, 1):
        losses = []
        order = rng.sample(range(len(data.labels)), len(data.labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            images = normalise([augment(Image.fromarray(data.pictures[one]), pixels, rng) for one in chosen])
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(cpu_flags().intersection(BFLOAT16_FLAGS))):
                logits = network(images).float()
                taught = None if teacher is None else _answers(teacher, images)
            loss = _loss(logits, torch.from_numpy(data.labels[chosen]), taught)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        _say(f"epoch {epoch} of {len(sizes)}: loss {np.mean(losses):.3f}, {time.monotonic() - began:.0f} s")


@torch.no_grad()
def _answers(teacher: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    return teacher(images).float()


def _loss(logits: torch.Tensor, labels: torch.Tensor, taught: torch.Tensor | None) -> torch.Tensor:
    plain = functional.cross_entropy(logits, labels, label_smoothing=0.05)
    if taught is None:
        return plain
    wanted = functional.softmax(taught / TEMPERATURE, 1)
    soft = functional.kl_div(functional.log_softmax(logits / TEMPERATURE, 1), wanted, reduction="batchmean")
    return (1 - TEACHER_WEIGHT) * plain + TEACHER_WEIGHT * TEMPERATURE**2 * soft


def _keep(path: Path, write: Callable[[io.BufferedWriter], object]) -> None:
    """Write a file as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        write(file)
    partial.rename(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trained_models", description="Train the models.")
    parser.add_argument("name", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    for name in parser.parse_args().name:
        network = RECIPES[name].build()
        print(f"{RECIPES[name].path}: {RECIPES[name].evaluate(network):.2%} right")


if __name__ == "__main__":
    main()
