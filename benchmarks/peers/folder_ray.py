"""Ray Data, fused: each actor reads, preprocesses and infers, so that no image crosses the object store.

The unfused form (read_binary_files, then preprocess, then infer) reaches about half of its rate. Starting the cluster is
outside the measured time, starting the dataset's actors inside it, as they start anew with every dataset.
"""

import shutil

import numpy as np
import ray.data

from benchmarks.measure import Window
from benchmarks.peers.preprocess import preprocessor, read
from benchmarks.peers.protocol import FolderJobs, Peer, Settings, grid
from benchmarks.peers.ray_common import Infer, cluster, num_blocks


class Whole(Infer):
    """Actor: paths become labels and scores."""

    def __init__(self, model: str, settings: Settings) -> None:
        super().__init__(model, settings.ort_threads)
        self._preprocess = preprocessor(settings.decode)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Read, preprocess and classify a batch of paths."""
        paths = batch["item"]
        return super().__call__({"path": paths, "image": np.stack([self._preprocess(read(path)) for path in paths])})


def run(jobs: FolderJobs, settings: Settings) -> Window:
    shutil.rmtree(jobs.output, ignore_errors=True)
    with cluster(), Window() as window:
        files = ray.data.from_items(jobs.paths, override_num_blocks=num_blocks(len(jobs.paths)))
        files.map_batches(
            Whole,
            fn_constructor_args=(jobs.model, settings),
            batch_size=settings.batch,
            concurrency=settings.preprocess_workers,
        ).write_parquet(jobs.output)
    return window


PEER = Peer(
    name="ray",
    title="Ray Data, fused actors",
    workload="folder",
    grid=grid(preprocess_workers=(2, 1), batch=(2, 1, 8, 4, 16, 32)),
    run=run,
    heavy=True,
)
