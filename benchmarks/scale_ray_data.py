"""Ray Data's own programs for what `benchmarks.scale` measures: when each row was done, on a cluster of two cores.

An engineer's program is fused: two actors that read, decode and classify, so that no image crosses the object store. That of
the documentation is a chain of operators: one makes the images ready, an actor calls the model.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.preprocess import preprocess_usual, preprocessor, read

_Batch = dict[str, Any]


class Shrink:
    """Actor: makes photographs small."""

    def __call__(self, batch: _Batch) -> _Batch:
        """Return when each was done."""
        from scale_app import shrink

        return {"at": [shrink(Path(path))["at"] for path in batch["path"]]}


class Infer:
    """Actor: classifies images."""

    def __init__(self) -> None:
        self._classify = Classifier(str(models.build()))

    def __call__(self, batch: _Batch) -> _Batch:
        """Return labels, and when the batch was done."""
        labels = [label for label, _ in self._classify(batch["image"])]
        return {"label": labels, "at": [time.time()] * len(labels)}


class Classify(Infer):
    """Actor: reads, decodes and classifies photographs."""

    def __call__(self, batch: _Batch) -> _Batch:
        """Return labels, and when the batch was done."""
        return super().__call__(prepare(batch))


def prepare(batch: _Batch) -> _Batch:
    """Return the images of a batch of paths, float32 (n, 3, 224, 224)."""
    preprocessor("usual")  # one thread for each call of OpenCV
    return {"image": np.stack([preprocess_usual(read(path)) for path in batch["path"]])}


def shrink(folder: Path, batch_size: int) -> list[float]:
    """Return when each photograph was small: two fused actors."""
    return _times(folder, batch_size, lambda rows: rows.map_batches(Shrink, **_actors(2, batch_size)))


def classify(folder: Path, batch_size: int) -> list[float]:
    """Return when each photograph was classified: two fused actors."""
    return _times(folder, batch_size, lambda rows: rows.map_batches(Classify, **_actors(2, batch_size)))


def classify_in_operators(folder: Path, batch_size: int) -> list[float]:
    """Return when each photograph was classified: tasks that decode, and an actor with the model."""

    def chain(rows: Any) -> Any:
        return rows.map_batches(prepare, batch_size=batch_size).map_batches(Infer, **_actors(1, batch_size))

    return _times(folder, batch_size, chain)


def _actors(count: int, batch_size: int) -> dict[str, Any]:
    import ray.data

    return {"batch_size": batch_size, "compute": ray.data.ActorPoolStrategy(size=count)}


def _times(folder: Path, batch_size: int, program: Callable[[Any], Any]) -> list[float]:
    import ray.data

    paths = [{"path": str(path)} for path in sorted((folder / "photos").iterdir())]
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}}
    with local_ray(runtime_env=environment):
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = ray.data.from_items(paths, override_num_blocks=max(4, len(paths) // max(64, batch_size)))
        return sorted(row["at"] for row in program(rows).take_all())


@contextlib.contextmanager
def local_ray(**options: Any) -> Iterator[None]:
    """Run Ray on two cores of this machine for the length of a `with` block."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        "local", num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False,
        logging_level="ERROR", **options,
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()
