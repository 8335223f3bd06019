"""Batches of decoded JPEGs: hr.loader on shards beside PyTorch's DataLoader on the folder, each at its best number of workers.

Both decode the same files by simplejpeg, crop nothing and stack; the pixels of an epoch are compared before anything is timed.
The limit is what both cores decode from memory, without reading and batching.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.feed.data import pack
from headrace.samples.generator import make
from headrace.store.loader import LoadedSample, Loader

_BATCH, _SIDE, _CORES = 32, 352, 2


def run(*, quick: bool) -> dict[str, Any]:
    """Return images per second of each way and the ratios."""
    number, rounds = (320, 3) if quick else (1_280, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = _make_images(folder / "files", number)
        pack(folder / "files", folder / "data")
        ways: dict[str, Any] = {"limit": lambda: _limit(files)}
        ways |= {f"headrace, {threads} threads": partial(_ours, folder / "data", threads) for threads in (1, 2, 3)}
        ways |= _torch_ways(files)
        sums = {name: way() for name, way in ways.items()}
        if len(set(sums.values())) > 1:
            raise AssertionError(f"the pixels differ: {sums}")
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                rates[name].append(number / (time.perf_counter() - began))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max((name for name in medians if name.startswith("headrace")), key=medians.__getitem__)
    peers = {name: medians[name] for name in medians if name.startswith("torch")}
    found: dict[str, Any] = {"images": number, "rounds": rounds, "rates": medians, "best": best,
                             "limit_share": medians[best] / medians["limit"], "peers": peers}  # fmt: skip
    if peers:
        found["ratio_best_peer"] = medians[best] / max(peers.values())
    return found


def _make_images(folder: Path, number: int) -> list[Path]:
    made = folder.parent / "made"
    make(made, count=20, seed=3)
    folder.mkdir()
    pictures = []
    for path in sorted(made.glob("*.jpg")):
        picture = cv2.imread(str(path))
        if picture is not None:
            pictures.append(cv2.resize(picture, (_SIDE, _SIDE)))
    files = [folder / f"{index:05d}.jpg" for index in range(number)]
    for index, file in enumerate(files):
        cv2.imwrite(str(file), pictures[index % len(pictures)], [cv2.IMWRITE_JPEG_QUALITY, 88])
    return files


def _decode(data: bytes) -> np.ndarray:
    picture: np.ndarray = simplejpeg.decode_jpeg(data)
    return picture


def _of_sample(sample: LoadedSample) -> np.ndarray:
    return _decode(sample.parts["jpg"])


def _ours(data: Path, workers: int) -> int:
    loader = Loader(data, _BATCH, transform=_of_sample, workers=workers, end="keep")
    total = sum(int(batch[:, ::16, ::16].sum()) for batch in loader)
    loader.close()
    return total


def _limit(files: list[Path]) -> int:
    contents = [file.read_bytes() for file in files]
    with ThreadPoolExecutor(_CORES) as pool:
        return sum(pool.map(lambda data: int(_decode(data)[::16, ::16].sum()), contents, chunksize=8))


def _torch_ways(files: list[Path]) -> dict[str, Any]:
    try:
        from torch.utils.data import DataLoader
    except ImportError:
        return {}
    from benchmarks.feed.torch_dataset import Pictures

    def read(workers: int) -> int:
        loader = DataLoader(Pictures(files), batch_size=_BATCH, shuffle=True, num_workers=workers)
        return sum(int(batch.numpy()[:, ::16, ::16].sum()) for batch in loader)

    return {f"torch DataLoader, {workers} processes": (lambda workers=workers: read(workers)) for workers in (0, 1, 2)}


def as_text(found: dict[str, Any]) -> str:
    """Return a table."""
    size = f"{_SIDE} x {_SIDE}"
    lines = [
        f"## Loading {found['images']:,} JPEGs of {size} pixels; images/s, median of {found['rounds']} rounds in turn",
        "",
        "| way | images/s |",
        "|---|---|",
    ]
    lines += [f"| {name} | {rate:,.0f} |" for name, rate in found["rates"].items()]
    lines += ["", f"{found['best']}: {found['limit_share']:.2f} of what the cores decode from memory (goal: 0.95)."]
    if "ratio_best_peer" in found:
        lines.append(
            f"{found['ratio_best_peer']:.2f} times PyTorch's DataLoader at its best (goal: 1.3). "
            "SPDL, litdata, Ray Data: not measured."
        )
    return "\n".join(lines)
