"""One batch after the other: read, preprocess, model; the rows are written in the end."""

from collections.abc import Sequence

from benchmarks.measure import Window
from benchmarks.peers import parquet
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.preprocess import Preprocess, preprocessor, read, warm_up_jpeg
from benchmarks.peers.protocol import FolderJobs, Peer, Settings, grid


def classify_files(paths: Sequence[str], preprocess: Preprocess, classify: Classifier, batch: int) -> list[parquet.Row]:
    """Return the rows of these files, in order."""
    rows: list[parquet.Row] = []
    for start in range(0, len(paths), batch):
        some = paths[start : start + batch]
        results = classify([preprocess(read(path)) for path in some])
        rows += [(path, *result) for path, result in zip(some, results, strict=True)]
    return rows


def run(jobs: FolderJobs, settings: Settings) -> Window:
    preprocess = preprocessor(settings.decode)
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    preprocess(warm_up_jpeg())
    with Window() as window:
        parquet.write(classify_files(jobs.paths, preprocess, classify, settings.batch), jobs.output)
    return window


PEER = Peer(
    name="sequential",
    title="sequential loop",
    workload="folder",
    grid=grid(batch=(1, 2, 4, 8, 16, 32), ort_threads=(2, 1)),
    run=run,
)
