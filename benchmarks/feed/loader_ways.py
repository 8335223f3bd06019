"""Reads a folder of JPEGs, or what was packed of it, by one library: in a process for each, so that none is in another's way.

    python -m benchmarks.feed.loader_ways LIBRARY FOLDER EPOCHS

FOLDER holds `files`, the JPEGs, and `data`, their shards. All decode by simplejpeg and hand batches of uint8 pixels out in this
process. Each setting of the library reads one epoch that is not timed, and then EPOCHS that are. Before and behind them
two threads decode from memory: what these cores can at this moment. One line of JSON is printed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from headrace.store.loader import Loader
from headrace.store.loading_work import LoadedSample

BATCH, CORES = 32, 2
#: Reads an epoch, and returns a sum over its pixels that is the same in any order.
Epoch = Callable[[], int]


def _decode(data: bytes) -> np.ndarray:
    picture: np.ndarray = simplejpeg.decode_jpeg(data)
    return picture


def _read(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        return _decode(file.read())


def _sum(batches: Iterable[Any]) -> int:
    return sum(int(np.asarray(batch)[:, ::16, ::16].sum(dtype=np.int64)) for batch in batches)


def _files(folder: Path) -> list[str]:
    return sorted(map(str, (folder / "files").iterdir()))


def headrace(folder: Path) -> Iterator[tuple[str, Epoch]]:
    """`hr.loader` on the shards; the images copied into the batch, or decoded there."""
    for threads in (1, 2, 3):
        for name, transform in (("images", _of_sample), ("in place", _in_place)):
            with Loader(folder / "data", BATCH, transform=transform, workers=threads, end="keep") as loader:
                yield f"{threads} threads, {name}", partial(_sum, loader)


def _of_sample(sample: LoadedSample) -> np.ndarray:
    return _decode(sample.parts["jpg"])


def _in_place(sample: LoadedSample) -> np.ndarray:
    data = sample.parts["jpg"]
    return _decode_into(data, sample.place(_shape_of(data)))


def _shape_of(data: bytes) -> tuple[int, int, int]:
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    return height, width, 3


def _decode_into(data: bytes, place: np.ndarray) -> np.ndarray:
    simplejpeg.decode_jpeg(data, buffer=place)
    return place


class _Pictures:
    """The folder as a data set of PyTorch."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return import_module("torch").from_numpy(_read(self._files[index]))


def torch(folder: Path) -> Iterator[tuple[str, Epoch]]:
    """PyTorch's DataLoader on the files."""
    data = import_module("torch.utils.data")
    for workers in (0, 1, 2, 3):
        ahead = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
        loader = data.DataLoader(_Pictures(_files(folder)), BATCH, shuffle=True, num_workers=workers, **ahead)
        yield f"{workers} processes", partial(_sum, loader)


def spdl(folder: Path) -> Iterator[tuple[str, Epoch]]:
    """SPDL's pipeline on the files: decoded one by one, or a batch in a task."""
    files, pipelines = _files(folder), import_module("spdl.pipeline")

    def epoch(builder: Callable[[list[str]], Any], threads: int) -> int:
        shuffled = np.random.default_rng().permutation(files).tolist()
        pipeline = builder(shuffled).add_sink(4).build(num_threads=threads, use_thread_output_queue=True)
        with pipeline.auto_stop():
            return _sum(pipeline.get_iterator(timeout=60))

    for threads in (1, 2, 3):

        def one_by_one(shuffled: list[str], threads: int = threads) -> Any:
            builder = pipelines.PipelineBuilder().add_source(shuffled)
            return builder.pipe(_read, concurrency=threads).aggregate(BATCH).pipe(np.stack)

        def batches(shuffled: list[str], threads: int = threads, read: Any = _read_batch) -> Any:
            groups = [shuffled[at : at + BATCH] for at in range(0, len(shuffled), BATCH)]
            return pipelines.PipelineBuilder().add_source(groups).pipe(read, concurrency=threads)

        def in_place(shuffled: list[str], threads: int = threads) -> Any:
            return batches(shuffled, threads, _read_batch_in_place)

        for name, builder in (("images", one_by_one), ("batches", batches), ("batches in place", in_place)):
            # One thread more stacks the images.
            more = threads + (builder is one_by_one)
            yield f"{threads} threads, {name}", partial(epoch, builder, more)


def _read_batch(paths: list[str]) -> np.ndarray:
    return np.stack([_read(path) for path in paths])


def _read_batch_in_place(paths: list[str]) -> np.ndarray:
    contents = [Path(path).read_bytes() for path in paths]
    batch = np.empty((len(paths), *_shape_of(contents[0])), np.uint8)
    for data, place in zip(contents, batch, strict=True):
        _decode_into(data, place)
    return batch


def webdataset(folder: Path) -> Iterator[tuple[str, Epoch]]:
    """The WebDataset library on the shards."""
    library, shards = import_module("webdataset"), sorted(map(str, (folder / "data").glob("*.tar")))
    for workers in (0, 1, 2):
        samples = library.WebDataset(shards, shardshuffle=len(shards), empty_check=False).shuffle(4 * BATCH)
        samples = samples.map(_of_members).batched(BATCH, collation_fn=_stack_tensors)
        ahead = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
        loader = library.WebLoader(samples, batch_size=None, num_workers=workers, **ahead)
        yield f"{workers} processes", partial(_sum, loader)


def _of_members(sample: Mapping[str, bytes]) -> np.ndarray:
    return _decode(sample["jpg"])


def _stack_tensors(pictures: list[np.ndarray]) -> Any:
    return import_module("torch").from_numpy(np.stack(pictures))


def litdata(folder: Path) -> Iterator[tuple[str, Epoch]]:
    """The StreamingDataLoader of litdata on its own chunks."""
    library, chunks = import_module("litdata"), folder / "litdata"
    if not (chunks / "index.json").exists():
        library.optimize(_as_bytes, _files(folder), str(chunks), chunk_bytes="4MB", num_workers=1, verbose=False)
    for workers in (0, 1, 2):
        samples = library.StreamingDataset(str(chunks), shuffle=True, drop_last=False, transform=_of_dict)
        ahead = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
        loader = library.StreamingDataLoader(samples, batch_size=BATCH, num_workers=workers, **ahead)
        yield f"{workers} processes", partial(_sum, loader)


def _as_bytes(path: str) -> dict[str, bytes]:
    return {"jpg": Path(path).read_bytes()}


def _of_dict(sample: Mapping[str, bytes]) -> Any:
    return import_module("torch").from_numpy(_decode(sample["jpg"]))


def ray(folder: Path) -> Iterator[tuple[str, Epoch]]:
    """Ray Data on the files, on two CPUs."""
    from benchmarks.peers.ray_common import cluster

    data, files = import_module("ray.data"), _files(folder)
    with cluster(CORES):
        for blocks in (CORES, 4 * CORES):

            def epoch(blocks: int = blocks) -> int:
                read = data.read_binary_files(files, override_num_blocks=blocks, shuffle="files")
                decoded = read.map_batches(_of_columns, batch_size=BATCH)
                return _sum(
                    batch["image"]
                    for batch in decoded.iter_batches(batch_size=BATCH, batch_format="numpy", prefetch_batches=4)
                )

            yield f"{blocks} blocks", epoch


def _of_columns(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"image": np.stack([_decode(data) for data in columns["bytes"]])}


#: {name: (reads by it, the package that it needs)}.
LIBRARIES: Mapping[str, tuple[Callable[[Path], Iterator[tuple[str, Epoch]]], str]] = {
    "headrace": (headrace, "headrace"),
    "PyTorch DataLoader": (torch, "torch"),
    "SPDL": (spdl, "spdl"),
    "WebDataset": (webdataset, "webdataset"),
    "litdata": (litdata, "litdata"),
    "Ray Data": (ray, "ray"),
}


def _limit(folder: Path, epochs: int) -> list[float]:
    """Return images/s that the cores decode from memory, of some epochs."""
    contents = [Path(file).read_bytes() for file in _files(folder)]
    rates = []
    with ThreadPoolExecutor(CORES) as pool:
        for _ in range(epochs):
            began = time.perf_counter()
            for _ in pool.map(_decode_all, (contents[place::CORES] for place in range(CORES))):
                pass
            rates.append(len(contents) / (time.perf_counter() - began))
    return rates


def _decode_all(contents: list[bytes]) -> None:
    for data in contents:
        _decode(data)


def measure(library: str, folder: Path, epochs: int) -> dict[str, Any]:
    """Return images/s of each setting, of the cores, and the sum over the pixels of each setting's first epoch."""
    number, rates, sums = len(_files(folder)), {}, {}
    limits = _limit(folder, epochs)
    for setting, epoch in LIBRARIES[library][0](folder):
        sums[setting] = epoch()
        began = time.perf_counter()
        for _ in range(epochs):
            epoch()
        rates[setting] = epochs * number / (time.perf_counter() - began)
    return {"limit": statistics.median(limits + _limit(folder, epochs)), "rates": rates, "sums": sums}


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    print("\n" + json.dumps(measure(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))), flush=True)
    os._exit(0)  # whatever threads a library leaves
