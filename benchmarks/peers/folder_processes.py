"""Processes preprocess into shared memory, the main process infers.

How this works: the shared array is cut into places of one batch each. The main process sends (place, paths) for as many
places as there are; a process fills the place and sends it back; the main process infers from it in place, without a
copy, and sends it out again with the next paths.
"""

import multiprocessing
from typing import Any

from benchmarks.measure import Window
from benchmarks.peers import parquet
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.preprocess import preprocessor, read, warm_up_jpeg
from benchmarks.peers.protocol import Decode, FolderJobs, Peer, Settings, grid
from benchmarks.peers.shared_images import SharedImages
from benchmarks.peers.threads import END


def preprocess_process(decode: Decode, shape: tuple[int, int], name: str, todo: Any, done: Any, ready: Any) -> None:
    """Fill places until END."""
    num_places, batch = shape
    preprocess = preprocessor(decode)
    with SharedImages(num_places * batch, name) as images:
        preprocess(warm_up_jpeg())
        ready.wait()
        while (task := todo.get()) is not END:
            place, paths = task
            for slot, path in enumerate(paths, start=place * batch):
                preprocess(read(path), images.array[slot])
            done.put(task)


def run(jobs: FolderJobs, settings: Settings) -> Window:
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    batch, num_places = settings.batch, 2 * settings.preprocess_workers + 2
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    ready = context.Barrier(settings.preprocess_workers + 1)
    with SharedImages(num_places * batch) as images:
        arguments = (settings.decode, (num_places, batch), images.name, todo, done, ready)
        processes = [
            context.Process(target=preprocess_process, args=arguments) for _ in range(settings.preprocess_workers)
        ]
        for process in processes:
            process.start()
        ready.wait()
        batches = [jobs.paths[start : start + batch] for start in range(0, len(jobs.paths), batch)]
        with Window() as window:
            rows: list[parquet.Row] = []
            waiting = iter(batches)
            for place, paths in zip(range(num_places), waiting, strict=False):
                todo.put((place, paths))
            for _ in batches:
                place, paths = done.get()
                results = classify(images.array[place * batch : place * batch + len(paths)])
                if following := next(waiting, None):
                    todo.put((place, following))
                rows += [(path, *result) for path, result in zip(paths, results, strict=True)]
            parquet.write(rows, jobs.output)
        for _ in processes:
            todo.put(END)
        for process in processes:
            process.join()
    return window


PEER = Peer(
    name="processes",
    title="preprocess processes, shared memory",
    workload="folder",
    grid=grid(ort_threads=(1, 2), preprocess_workers=(2, 1, 3), batch=(1, 2, 4, 8)),
    run=run,
)
