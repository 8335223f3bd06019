"""What is asked of every server: bytes of about 12.8 KB for an emulated device, or photographs for a model on the CPU."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import corpus, models
from benchmarks.paths import CACHE, digest

LAUNCH_SECONDS, ITEM_SECONDS = 0.002, 0.0002
THUMB_BYTES, THUMB_SPREAD, NUM_THUMBS, SEED = 12_800, 0.3, 64, 11


@dataclass(frozen=True)
class Workload:
    """One kind of request, and what answers it."""

    name: str
    title: str
    bodies: tuple[str, ...]
    """Files, sent in turn."""
    plan: str
    """headrace's, a file in `benchmarks/plans`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What all servers are told: device or model."""

    @property
    def decodes(self) -> bool:
        """Whether the bodies are images that every server decodes."""
        return self.name == "real"

    def limit_per_second(self, batch: int) -> float:
        """Return the emulated device's rate with batches of a size."""
        return batch / (LAUNCH_SECONDS + ITEM_SECONDS * batch)


def emulated(folder: Path) -> Workload:
    """Return requests of 12.8 KB whose bytes nobody decodes, for a device of 2 + 0.2 n ms; its lock lies in the folder."""
    settings = {
        "workload": "emulated",
        "lock": str(folder / "device.lock"),
        "launch_seconds": LAUNCH_SECONDS,
        "item_seconds": ITEM_SECONDS,
        "model": "",
    }
    return Workload("emulated", "Emulated device, 2 + 0.2 n ms", _thumbs(), "serve_emulated.toml", settings)


def real(folder: Path) -> Workload:
    """Return photographs of about 127 KB for a MobileNetV2-like model on the CPU, decoded by every server."""
    images = sorted(corpus.build(count=200).glob("*.jpg"))
    settings = {**emulated(folder).settings, "workload": "real", "model": str(models.build())}
    title = "MobileNetV2-like on the CPU, JPEGs decoded"
    return Workload("real", title, tuple(map(str, images)), "serve_real.toml", settings)


def _thumbs() -> tuple[str, ...]:
    folder = CACHE / f"thumbs-{digest([THUMB_BYTES, THUMB_SPREAD, NUM_THUMBS, SEED])}"
    paths = [folder / f"{number:03}.bin" for number in range(NUM_THUMBS)]
    chance = random.Random(SEED)
    for path in paths:
        body = chance.randbytes(round(THUMB_BYTES * chance.lognormvariate(-(THUMB_SPREAD**2) / 2, THUMB_SPREAD)))
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
    return tuple(map(str, paths))
