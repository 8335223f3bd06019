"""PyTorch DataLoader: its workers read and preprocess, the main process infers."""

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.measure import Window
from benchmarks.peers import parquet
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.preprocess import preprocessor, read, warm_up_jpeg
from benchmarks.peers.protocol import FolderJobs, Peer, Settings, grid


class Files(Dataset):
    """Index to (index, image tensor)."""

    def __init__(self, paths: list[str], settings: Settings) -> None:
        self.paths, self.settings, self.preprocess = paths, settings, preprocessor(settings.decode)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.from_numpy(self.preprocess(read(self.paths[index])))


def run(jobs: FolderJobs, settings: Settings) -> Window:
    torch.set_num_threads(1)
    preprocessor(settings.decode)(warm_up_jpeg())
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    ahead = {"prefetch_factor": 4} if settings.preprocess_workers else {}
    with Window() as window:
        rows: list[parquet.Row] = []
        files = Files(jobs.paths, settings)
        for indices, images in DataLoader(files, settings.batch, num_workers=settings.preprocess_workers, **ahead):
            results = classify(images.numpy())
            rows += [(jobs.paths[i], *result) for i, result in zip(indices.tolist(), results, strict=True)]
        parquet.write(rows, jobs.output)
    return window


PEER = Peer(
    name="dataloader",
    title="PyTorch DataLoader",
    workload="folder",
    grid=(
        *grid(preprocess_workers=(2, 1, 3), batch=(1, 2, 4, 8)),
        *grid(preprocess_workers=(0,), ort_threads=(2,), batch=(1, 8)),
    ),
    run=run,
    heavy=True,
)
