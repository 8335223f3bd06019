"""Ray Data: actors for download, preprocessing, model and callback, connected by its object store.

Starting the cluster is outside the measured time, starting the dataset's actors inside it: they start anew with every
dataset, which costs several seconds. Read ``steady_rate`` for what a long run would reach.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import ray.data

from benchmarks.measure import Window
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.preprocess import preprocessor
from benchmarks.peers.protocol import Decode, Peer, QueueJobs, Settings, grid
from benchmarks.peers.ray_common import Infer, cluster, num_blocks
from benchmarks.peers.threads import answer

Batch = dict[str, np.ndarray]


class Download:
    """Actor: addresses become JPEG bytes."""

    def __init__(self, client: str, workers: int) -> None:
        self._client, self._pool = make_client(client, workers), ThreadPoolExecutor(workers)

    def __call__(self, batch: Batch) -> Batch:
        """Fetch a batch."""
        bodies = np.empty(len(batch["id"]), object)  # filled one by one: numpy must not look inside bytes
        bodies[:] = list(self._pool.map(self._client.get, batch.pop("url")))
        return {"id": batch["id"], "jpeg": bodies}


class Preprocess:
    """Actor: JPEG bytes become images."""

    def __init__(self, decode: Decode) -> None:
        self._preprocess = preprocessor(decode)

    def __call__(self, batch: Batch) -> Batch:
        """Preprocess a batch."""
        return {"id": batch["id"], "image": np.stack([self._preprocess(jpeg) for jpeg in batch["jpeg"]])}


class CallBack:
    """Actor: posts the answers."""

    def __init__(self, client: str, workers: int, url: str) -> None:
        self._client, self._pool, self._url = make_client(client, workers), ThreadPoolExecutor(workers), url

    def __call__(self, batch: Batch) -> Batch:
        """Post a batch of answers."""
        rows = zip(batch["id"].tolist(), batch["label"].tolist(), batch["score"].tolist(), strict=True)
        list(self._pool.map(lambda row: self._client.post(self._url, answer(*row)), rows))
        return {"id": batch["id"]}


def run(jobs: QueueJobs, settings: Settings) -> Window:
    many = max(32, settings.batch)
    io = (settings.client, settings.io_workers)
    # More logical cores than real ones: I/O actors mostly wait.
    with cluster(num_cpus=4), Window() as window:
        dataset = ray.data.from_items(
            [{"id": item_id, "url": url} for item_id, url in jobs.items],
            override_num_blocks=num_blocks(len(jobs.items)),
        )
        dataset = dataset.map_batches(
            Download, fn_constructor_args=io, batch_size=many, concurrency=1, num_cpus=0.25
        ).map_batches(
            Preprocess,
            fn_constructor_args=(settings.decode,),
            batch_size=settings.batch,
            concurrency=settings.preprocess_workers,
            num_cpus=0.5,
        )
        dataset = dataset.map_batches(
            Infer,
            fn_constructor_args=(jobs.model, settings.ort_threads),
            batch_size=settings.batch,
            concurrency=settings.model_workers,
            num_cpus=0.5,
        ).map_batches(
            CallBack, fn_constructor_args=(*io, jobs.callback_url), batch_size=many, concurrency=1, num_cpus=0.25
        )
        for _ in dataset.iter_batches(batch_size=None):
            pass
    return window


PEER = Peer(
    name="ray",
    title="Ray Data",
    workload="queue",
    grid=grid(
        client=("pycurl",), io_workers=(32, 64), batch=(8, 2, 32), preprocess_workers=(2, 1), model_workers=(1, 2)
    ),
    run=run,
    heavy=True,
)
