"""concurrent.futures: one pool downloads and preprocesses, the main thread batches and infers, one pool calls back."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

from benchmarks.measure import Window
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import Peer, QueueJobs, Settings, grid
from benchmarks.peers.threads import answer, collect


def run(jobs: QueueJobs, settings: Settings) -> Window:
    client = make_client(settings.client, settings.io_workers + settings.callback_workers)
    preprocess = preprocessor(settings.decode)
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    preprocess(warm_up_jpeg())
    ready: queue.SimpleQueue[tuple] = queue.SimpleQueue()
    room = threading.Semaphore(settings.io_workers + 4 * settings.batch)  # bounds what waits for the model

    def fetch(item_id: int, url: str) -> None:
        ready.put((item_id, preprocess(client.get(url))))

    def submit_all(pool: ThreadPoolExecutor) -> None:
        for item_id, url in jobs.items:
            room.acquire()
            pool.submit(fetch, item_id, url)

    with (
        Window() as window,
        ThreadPoolExecutor(settings.io_workers) as fetching,
        ThreadPoolExecutor(settings.callback_workers) as calling,
    ):
        threading.Thread(target=submit_all, args=(fetching,), daemon=True).start()
        num_done = 0
        while num_done < len(jobs.items):
            most = min(settings.batch, len(jobs.items) - num_done)
            batch, _ = collect(ready, most, settings.batch_wait_seconds)
            num_done += len(batch)
            room.release(len(batch))
            for (item_id, _), result in zip(batch, classify([image for _, image in batch]), strict=True):
                calling.submit(client.post, jobs.callback_url, answer(item_id, *result))
    return window


PEER = Peer(
    name="thread-pool",
    title="concurrent.futures thread pools",
    workload="queue",
    grid=grid(client=("pycurl", "urllib3"), ort_threads=(1, 2), batch=(1, 2, 8), io_workers=(16, 32, 64)),
    run=run,
)
