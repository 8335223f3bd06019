"""Starting and stopping Ray quietly, and the actor that calls the model."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import ray
import ray.data

from benchmarks.measure import usable_cores
from benchmarks.peers.classifier import Classifier


@contextmanager
def cluster(num_cpus: int | None = None) -> Iterator[None]:
    """Run Ray on this machine for the length of a ``with`` block, without dashboard, logs or progress bars.

    Args:
        num_cpus: Logical cores it may schedule; None means the usable ones.
    """
    ray.init(
        num_cpus=num_cpus or usable_cores(),
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=2 * 2**30,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel("ERROR")
    try:
        yield
    finally:
        ray.shutdown()


class Infer:
    """Actor: a batch's images become labels and scores."""

    def __init__(self, model: str, threads: int) -> None:
        self._classify = Classifier(model, threads)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Classify a batch of images."""
        results = self._classify(batch.pop("image"))
        batch["label"] = np.array([label for label, _ in results])
        batch["score"] = np.array([score for _, score in results])
        return batch


def num_blocks(num_items: int) -> int:
    """Return how many blocks to cut a dataset into: enough to keep all workers busy, few enough to stay cheap."""
    return max(4, num_items // 64)
