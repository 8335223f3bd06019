"""Threads for every stage, bounded queues between them.

How this works: downloaders take jobs -> ``downloaded`` -> preprocess threads -> ``ready`` -> model threads, which form
batches -> ``answered`` -> callback threads. A full queue blocks its producers, so memory is bounded. The end travels the
same way: when a stage's threads are done, each worker of the next finds an END in its queue.
"""

import queue

from benchmarks.measure import Window
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import Peer, QueueJobs, Settings, grid
from benchmarks.peers.threads import END, answer, collect, finish, start


def run(jobs: QueueJobs, settings: Settings) -> Window:
    client = make_client(settings.client, settings.io_workers + settings.callback_workers)
    preprocess = preprocessor(settings.decode)
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    preprocess(warm_up_jpeg())
    waiting = iter(jobs.items)  # next() on a list's iterator is atomic
    downloaded = queue.Queue(settings.io_workers)
    ready = queue.Queue(4 * settings.batch * settings.model_workers)
    answered = queue.Queue(256)

    def download() -> None:
        for item_id, url in waiting:
            downloaded.put((item_id, client.get(url)))

    def prepare() -> None:
        while (item := downloaded.get()) is not END:
            ready.put((item[0], preprocess(item[1])))

    def infer() -> None:
        ended = False
        while not ended:
            batch, ended = collect(ready, settings.batch, settings.batch_wait_seconds)
            if batch:
                for (item_id, _), result in zip(batch, classify([image for _, image in batch]), strict=True):
                    answered.put(answer(item_id, *result))

    def call_back() -> None:
        while (body := answered.get()) is not END:
            client.post(jobs.callback_url, body)

    with Window() as window:
        downloaders = start(settings.io_workers, download)
        preparers = start(settings.preprocess_workers, prepare)
        models = start(settings.model_workers, infer)
        callers = start(settings.callback_workers, call_back)
        finish(downloaders, downloaded, settings.preprocess_workers)
        finish(preparers, ready, settings.model_workers)
        finish(models, answered, settings.callback_workers)
        finish(callers)
    return window


PEER = Peer(
    name="threads",
    title="threads and bounded queues",
    workload="queue",
    grid=grid(
        client=("pycurl", "urllib3"), model_workers=(2, 1), preprocess_workers=(2, 1), batch=(1, 4), io_workers=(32, 64)
    ),
    run=run,
)
