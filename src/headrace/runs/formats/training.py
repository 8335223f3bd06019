"""What a training process says of itself: `training/HOST-PID.json` in a run folder whose unit is `step`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

#: Folder of the files below, in the run folder.
FOLDER = "training"


class LoaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loader that the training thread asked for batches."""

    kind: str
    """Its class, with the module."""
    dataset: str
    """Class of its data set; empty: not known."""
    num_items: int | None
    """Items in the data set; None: not known."""
    workers: Annotated[int, msgspec.Meta(ge=0, le=65_536)]
    """Loader processes; 0: the training thread loads."""
    prefetch_factor: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] | None
    """Batches that each worker loads ahead; None without workers."""
    batch_size: int | None
    in_order: bool
    """A batch waits for those before it."""
    persistent_workers: bool
    pin_memory: bool
    num_learnt: int | None = None
    """Batches that were learnt from after it gave one; 0 for validation. None: not known."""


class FirstBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Fingerprints of the first batches that a loader gave; see `headrace.train.fingerprints`."""

    sampler: str
    """Class that gives the loader its order; empty: not known."""
    epochs: tuple[tuple[tuple[str, ...], ...], ...]
    """For each epoch that trained, for each batch, for each tensor: 16 hexadecimal digits; empty: not readable."""


class TrainingProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process that trains."""

    host: str
    process: int
    rank: int
    world_size: int
    script: str
    """What runs: `train.py`, or `profile()` of a program."""
    framework: str
    """`torch`, `lightning`, `transformers`, `keras`."""
    torch_version: str
    threads: int
    """Threads of PyTorch's operators."""
    device: str
    """Of the parameters: `cpu`, `cuda:0`."""
    modules: tuple[str, ...]
    """Classes of the outermost modules."""
    num_parameters: int
    parameter_bytes: int
    optimizers: tuple[str, ...]
    loaders: tuple[LoaderInfo, ...] = ()
    lost_spans: int = 0
    steps: int = 0
    has_ended: bool | None = None
    """Its recording was closed; False: this was written in the middle, and nothing after it. None: of a trace, or of before
    2026-12-01."""
    not_measured: dict[str, str] = {}
    """{what: why}."""
    details: dict[str, Any] = {}
    """Among others `batches`: for each of `loaders`, its `FirstBatches`."""


def process_file(run: Path, host: str, process: int) -> Path:
    """Return where a process of a run writes what it says of itself."""
    return run / FOLDER / f"{host}-{process}.json"
