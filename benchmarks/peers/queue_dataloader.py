"""PyTorch DataLoader: its workers download and preprocess, the main process infers, a thread pool calls back.

How this works: a worker process owns every n-th job and a pool of download threads that runs ahead of it; it preprocesses
in order and the loader collates batches. A plain ``__getitem__`` that downloads would wait 80 ms per image and worker;
the read-ahead pool is what someone who measured that would write.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.measure import Window
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import Peer, QueueJobs, Settings, grid
from benchmarks.peers.threads import answer


class Downloads(IterableDataset):
    """Yields (id, image tensor) for the jobs of one worker."""

    def __init__(self, items: list[tuple[int, str]], settings: Settings) -> None:
        self.items, self.settings = items, settings

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        worker = get_worker_info()
        mine = iter(self.items[worker.id :: worker.num_workers])
        ahead = max(1, self.settings.io_workers // worker.num_workers)
        client, preprocess = make_client(self.settings.client, ahead), preprocessor(self.settings.decode)
        with ThreadPoolExecutor(ahead) as pool:
            pending: deque = deque()

            def submit() -> None:
                for item_id, url in mine:
                    pending.append((item_id, pool.submit(client.get, url)))
                    return

            for _ in range(ahead):
                submit()
            while pending:
                item_id, body = pending.popleft()
                jpeg = body.result()
                submit()
                yield item_id, torch.from_numpy(preprocess(jpeg))


def run(jobs: QueueJobs, settings: Settings) -> Window:
    torch.set_num_threads(1)
    preprocessor(settings.decode)(warm_up_jpeg())
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    client = make_client(settings.client, settings.callback_workers)
    with Window() as window, ThreadPoolExecutor(settings.callback_workers) as calling:
        loader = DataLoader(
            Downloads(jobs.items, settings),
            settings.batch,
            num_workers=settings.preprocess_workers,
            prefetch_factor=4,
        )
        for ids, images in loader:
            for item_id, result in zip(ids.tolist(), classify(images.numpy()), strict=True):
                calling.submit(client.post, jobs.callback_url, answer(item_id, *result))
    return window


PEER = Peer(
    name="dataloader",
    title="PyTorch DataLoader with read-ahead downloads",
    workload="queue",
    grid=grid(client=("pycurl", "urllib3"), preprocess_workers=(2, 1), batch=(1, 2, 8), io_workers=(64, 32)),
    run=run,
    heavy=True,
)
