"""Several processes, each doing everything for its share of the files; the parent writes the rows."""

import multiprocessing
from typing import Any

from benchmarks.measure import Window
from benchmarks.peers import parquet
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.folder_sequential import classify_files
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import FolderJobs, Peer, Settings, grid


def whole_process(paths: list[str], model: str, settings: Settings, done: Any, ready: Any) -> None:
    """Classify one share of the files."""
    preprocess = preprocessor(settings.decode)
    classify = Classifier(model, settings.ort_threads).warm_up(settings.batch)
    preprocess(warm_up_jpeg())
    ready.wait()
    done.put(classify_files(paths, preprocess, classify, settings.batch))


def run(jobs: FolderJobs, settings: Settings) -> Window:
    count = settings.preprocess_workers
    context = multiprocessing.get_context("spawn")
    done, ready = context.Queue(), context.Barrier(count + 1)
    processes = [
        context.Process(target=whole_process, args=(jobs.paths[k::count], jobs.model, settings, done, ready))
        for k in range(count)
    ]
    for process in processes:
        process.start()
    ready.wait()
    with Window() as window:
        shares = [done.get() for _ in processes]
        parquet.write((row for share in shares for row in share), jobs.output)
    for process in processes:
        process.join()
    return window


PEER = Peer(
    name="whole-processes",
    title="processes that each do everything",
    workload="folder",
    grid=grid(preprocess_workers=(2, 3, 4, 1), batch=(1, 2, 4, 8)),
    run=run,
)
