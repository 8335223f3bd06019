"""Augmentation image by image in the worker, in batches on the CPU, and on an emulated device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import headrace as hr
from headrace.stages.augment import Augmentation, Drawn

#: Of the device, for a batch and for each image: the model, and the augmentation that is moved to it.
MODEL, MOVED = (0.0005, 0.0002), (0.0005, 0.0001)
_BATCH = 32


class Scores(hr.Module):
    """Scores an image on the emulated device."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def process(self, batch: Any) -> list[float]:
        """Return a score for each image."""
        return self.network(batch)[:, 0].tolist()  # type: ignore[no-any-return]


def run(*, quick: bool) -> dict[str, Any]:
    """Measure, and return values that JSON knows."""
    wanted = Augmentation(side=224, brightness=0.4, contrast=0.4)
    numbers = np.random.default_rng(1)
    images = [numbers.integers(0, 256, (256, 256, 3), np.uint8) for _ in range(4 * _BATCH)]
    drawn = [Drawn(image, wanted.draw(str(place), 256, 256)) for place, image in enumerate(images)]
    return {
        "cpu": _batching(wanted, drawn, rounds=3 if quick else 15),
        "pixels": _pixels(wanted, drawn),
        "emulated": _pipelines(wanted, images * (6 if quick else 40), rounds=1 if quick else 7),
    }


def _batching(wanted: Augmentation, drawn: list[Drawn], rounds: int) -> dict[str, Any]:
    ways: dict[str, Callable[[], Any]] = {
        "worker": lambda: [wanted.one(one.image, one.draw) for one in drawn],
        "torch_alone": lambda: [wanted.batch([one]) for one in drawn],
        "torch_batch": lambda: [wanted.batch(drawn[at : at + _BATCH]) for at in range(0, len(drawn), _BATCH)],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for count in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if count:  # the first is warm-up
                times[name].append((time.perf_counter() - began) / len(drawn) * 1e3)
    ms = {name: statistics.median(values) for name, values in times.items()}
    return {
        "ms": ms,
        "by_batching": ms["torch_alone"] / ms["torch_batch"],
        "over_worker": ms["worker"] / ms["torch_batch"],
    }


def _pixels(wanted: Augmentation, drawn: list[Drawn]) -> dict[str, Any]:
    crops = np.stack([wanted.cut(one.image, one.draw) for one in drawn]).astype(int)
    away = abs(crops - wanted.cut_batch(drawn))
    again = [wanted.draw(str(place), 256, 256) for place in range(len(drawn))]
    return {"most_levels": int(away.max()), "mean_levels": float(away.mean()),
            "other_crops": sum(one.draw != other for one, other in zip(drawn, again, strict=True))}  # fmt: skip


def _pipelines(wanted: Augmentation, images: list[np.ndarray], rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"worker": [], "emulated": []}
    for _ in range(rounds):
        for where, rates in found.items():
            rates.append(_rate(wanted, images, where))
    rates = {where: statistics.median(values) for where, values in found.items()}
    return {"images_per_second": rates, "ratio": rates["emulated"] / rates["worker"]}


def _rate(wanted: Augmentation, images: list[np.ndarray], where: str) -> float:
    launch, each = MOVED
    emulated = {"launch_seconds": launch, "item_seconds": each} if where == "emulated" else {}
    plan = hr.Plan.from_table({
        "model": {"engine": "emulated", "options": {"launch_seconds": MODEL[0], "item_seconds": MODEL[1]}},
        "stages": {
            "augment_draw": {"workers": 1},  # "augmentation on one thread", as the seed has it
            "augment": {"batch": _BATCH, "options": {"where": where, **emulated}},
            "process": {"batch": _BATCH},
        },
    })  # fmt: skip
    stages = [*hr.augment("augment", wanted), *Scores().stages()]
    pipeline = hr.Pipeline(hr.items(images), stages=stages, delivery=hr.collect())
    began = time.perf_counter()
    result = hr.run(pipeline, plan)
    assert result.counters.delivered == len(images)
    return len(images) / (time.perf_counter() - began)


def as_text(values: dict[str, Any]) -> str:
    """Return the part for readers."""
    cpu, pixels, emulated = values["cpu"], values["pixels"], values["emulated"]
    ms, rates = cpu["ms"], emulated["images_per_second"]
    model, moved = (f"{launch * 1e3:g} ms a call and {each * 1e3:g} ms an image" for launch, each in (MODEL, MOVED))
    return f"""## Augmentation: a crop of 256 x 256 pixels resized to 224, mirrored, brightness and contrast, normalised

| where | ms an image |
|---|---|
| in the worker, image by image, OpenCV, 1 thread | {ms["worker"]:.2f} |
| PyTorch on the CPU, image by image, 2 threads | {ms["torch_alone"]:.2f} |
| PyTorch on the CPU, batches of {_BATCH}, 2 threads | {ms["torch_batch"]:.2f} |

By batching alone {cpu["by_batching"]:.2f} times as fast (goal: 1.2); {cpu["over_worker"]:.2f} times the worker's one thread.
Pixels of the crops differ by {pixels["most_levels"]} grey level at most (goal: 1), {pixels["mean_levels"]:.3f} on average.
{pixels["other_crops"]} of the crops are other ones when they are drawn again (goal: 0).

A pipeline of one thread that augments and an emulated device ({model}) gives {rates["worker"]:,.0f} images/s.
With the augmentation on an emulated device ({moved}, which is assumed) it gives {rates["emulated"]:,.0f}:
{emulated["ratio"]:.2f} times (goal: 1.8)."""
