"""What every peer shares: its jobs, its settings, its grid of settings.

A peer is a module with one object, ``PEER``. Its function ``run(jobs, settings)`` prepares everything a service would
have ready before its first job (imports, model, warm-up, worker processes), then handles all jobs inside one ``Window``
and returns that window; ``window.seconds`` is its time.

The peers are written as a good engineer would write them for this workload, without a framework: no retries, no
receive counts, no measurement. A failed download ends the run.
"""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Literal

from benchmarks.measure import Window

Decode = Literal["usual", "scaled"]
Workload = Literal["queue", "folder", "emulated"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be tuned. A peer uses the fields its design has and ignores the others."""

    decode: Decode = "usual"
    """How images are decoded, see ``preprocess``; chosen by the comparison, never tuned."""
    batch: int = 1
    """Most images per model call."""
    batch_wait_seconds: float = 0.005
    """How long an incomplete batch waits for another image."""
    io_workers: int = 32
    """Downloads in flight: threads, tasks or both, over all processes."""
    callback_workers: int = 16
    """Callbacks in flight."""
    preprocess_workers: int = 2
    """Threads, processes or actors that preprocess; of fused designs, workers that do everything."""
    model_workers: int = 1
    """Threads that call the model."""
    ort_threads: int = 1
    """Threads inside one model call."""
    client: Literal["urllib3", "pycurl", "http.client", "aiohttp"] = "urllib3"
    """HTTP client."""
    on_loop: bool = False
    """Emulation only: sleep on the event loop instead of in an executor thread."""

    def __str__(self) -> str:
        """List the fields that differ from the defaults."""
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(changed) or "defaults"


@dataclass(frozen=True, kw_only=True)
class QueueJobs:
    """Images to fetch, classify and answer by callback."""

    items: list[tuple[int, str]]
    """Id and address of each image."""
    callback_url: str
    """Where {"id", "label", "score"} is posted."""
    model: str
    """ONNX file."""


@dataclass(frozen=True, kw_only=True)
class FolderJobs:
    """Images to read, classify and write as one Parquet file (or folder) of path, label, score."""

    paths: list[str]
    model: str
    """ONNX file."""
    output: str
    """Parquet file or folder to write."""


@dataclass(frozen=True, kw_only=True)
class EmulatedJobs:
    """Payloads to fetch over HTTP, preprocess by sleeping, run on an emulated device, answer by callback."""

    items: list[tuple[int, str]]
    callback_url: str
    preprocess_seconds: float
    """Sleep per item."""
    device_fixed_seconds: float
    """Time of a batch that does not depend on its size."""
    device_item_seconds: float
    """Time per item of a batch."""


@dataclass(frozen=True)
class Peer:
    """One design."""

    name: str
    title: str
    """One line for tables."""
    workload: Workload
    grid: tuple[Settings, ...]
    """Settings worth trying, the most promising first: a tuning short of time stops early."""
    run: Callable[..., Window]
    heavy: bool = False
    """Whether it needs the environment of ``benchmarks.setup_peers``."""


def grid(**choices: tuple[object, ...]) -> tuple[Settings, ...]:
    """Return settings for every combination of the named fields' values."""
    return tuple(Settings(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values()))


def as_json(value: object) -> dict[str, object]:
    """Return a dataclass as an object JSON can write."""
    return asdict(value)
