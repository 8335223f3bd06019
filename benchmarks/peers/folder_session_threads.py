"""Several threads, each doing everything with its own session; the main thread writes the rows."""

from benchmarks.measure import Window
from benchmarks.peers import parquet
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.folder_sequential import classify_files
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import FolderJobs, Peer, Settings, grid
from benchmarks.peers.threads import finish, start


def run(jobs: FolderJobs, settings: Settings) -> Window:
    preprocess, count = preprocessor(settings.decode), settings.preprocess_workers
    preprocess(warm_up_jpeg())
    classifiers = [Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch) for _ in range(count)]
    starts = iter(range(0, len(jobs.paths), settings.batch))
    rows: list[parquet.Row] = []

    def work() -> None:
        classify = classifiers.pop()
        for begin in starts:
            rows.extend(
                classify_files(jobs.paths[begin : begin + settings.batch], preprocess, classify, settings.batch)
            )

    with Window() as window:
        finish(start(count, work))
        parquet.write(rows, jobs.output)
    return window


PEER = Peer(
    name="session-threads",
    title="one ONNX Runtime session per thread",
    workload="folder",
    grid=grid(preprocess_workers=(2, 3, 4, 8), batch=(1, 2, 4)),
    run=run,
)
