"""concurrent.futures: a pool reads and preprocesses ahead, the main thread infers."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

from benchmarks.measure import Window
from benchmarks.peers import parquet
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.preprocess import preprocessor, read, warm_up_jpeg
from benchmarks.peers.protocol import FolderJobs, Peer, Settings, grid


def run(jobs: FolderJobs, settings: Settings) -> Window:
    preprocess = preprocessor(settings.decode)
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    preprocess(warm_up_jpeg())
    batches = (jobs.paths[i : i + settings.batch] for i in range(0, len(jobs.paths), settings.batch))
    num_ahead = 2 + -(-2 * settings.preprocess_workers // settings.batch)  # two batches, and work for every thread
    with Window() as window, ThreadPoolExecutor(settings.preprocess_workers) as pool:
        rows: list[parquet.Row] = []
        pending: deque = deque()

        def submit() -> None:
            if paths := next(batches, None):
                pending.append((paths, [pool.submit(lambda p: preprocess(read(p)), path) for path in paths]))

        for _ in range(num_ahead):
            submit()
        while pending:
            paths, images = pending.popleft()
            inputs = [image.result() for image in images]
            submit()
            rows += [(path, *result) for path, result in zip(paths, classify(inputs), strict=True)]
        parquet.write(rows, jobs.output)
    return window


PEER = Peer(
    name="thread-pool",
    title="concurrent.futures thread pool",
    workload="folder",
    grid=grid(ort_threads=(1, 2), preprocess_workers=(2, 1, 3), batch=(1, 2, 4, 8)),
    run=run,
)
