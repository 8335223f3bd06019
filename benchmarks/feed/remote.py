"""Reading packed shards over a link of 50 MB/s whose first byte takes 25 ms: by joined requests, and one request for each item.

The server is a loopback one, a program of its own, that answers ranges as S3 does; latency and rate are made by it. Then epochs
of a pipeline that only fetches, whose Plan keeps what it fetched on disk: the first, later ones, later ones with a cache of
half the size; beside them the same pipeline without a cache over the link, with one in memory, where there are no files to
create or open, and over the same shards on this disk, in the later epochs' order and in that of the shards. All is in the page
cache.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.feed.data import make_files, pack
from benchmarks.measure import Window
from headrace.base.pieces import Piece, RemotePiece
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.shards import Shards
from headrace.store.object_reader import ObjectReader
from headrace.store.objects import Bucket
from headrace.store.shards import find_shards, list_shard

LATENCY_SECONDS, BYTES_PER_SECOND = 0.025, 50e6
_WORKERS = 16


def run(*, quick: bool) -> dict[str, Any]:
    """Return which share of the link the first epoch used, and how much faster that is than one request for each item."""
    number = 1_000 if quick else 8_000
    with tempfile.TemporaryDirectory() as name:
        files, data = Path(name) / "files", Path(name) / "data"
        make_files(files, number)
        pack(files, data)
        pieces = list(_pieces(data))
        with serve(data):
            joined = _time(pieces, ObjectReader(1 << 30, 30.0))
            few = pieces[: max(200, number // 8)]
            bucket = Bucket("s3://bench")
            naive = _time(few, lambda piece: _one_by_one(bucket, piece)) * len(pieces) / len(few)
            epochs = _time_epochs(data, pieces, Path(name))
    num_bytes = sum(piece.length for piece in pieces)
    best = num_bytes / BYTES_PER_SECOND
    return {"items": number, "bytes": num_bytes, "seconds": joined, "reader_share": best / joined,
            "one_by_one_seconds": naive, "reader_speedup": naive / joined, **epochs,
            "first_epoch_share": best / epochs["first_epoch_seconds"],
            "later_share": epochs["local_seconds"] / epochs["later_epoch_seconds"],
            "speedup": epochs["uncached_seconds"] / epochs["later_epoch_seconds"]}  # fmt: skip


class _Pieces(FiniteSource):
    """Gives out pieces, in another order each epoch."""

    def __init__(self, pieces: Sequence[Piece | RemotePiece], epoch: int) -> None:
        super().__init__()
        self._pieces = random.Random(epoch).sample(pieces, len(pieces)) if epoch else pieces

    def entries(self) -> Iterator[Entry]:
        return (Entry(f"{one.path} {one.offset}", one) for one in self._pieces)


def _time_epochs(data: Path, pieces: list[RemotePiece], folder: Path) -> dict[str, float]:
    """Return the times of epochs over the link, with and without a cache, and from this disk; and hit shares."""
    whole = f"disk:{folder / 'whole'}:{2 * sum(map(_room, pieces)) / 1e6}MB"
    found: dict[str, float] = {}
    found["uncached_seconds"], _ = _time_epoch(_Pieces(pieces, 0), None)
    cpu_before = time.process_time()
    with Window() as window:
        found["first_epoch_seconds"], _ = _time_epoch(_Pieces(pieces, 0), whole)
    found["first_epoch_cores"], found["first_epoch_cpu_seconds"] = window.busy_cores, time.process_time() - cpu_before
    in_memory = f"memory:{2 * sum(map(_room, pieces)) / 1e6}MB"
    found["first_in_memory_seconds"], _ = _time_epoch(_Pieces(pieces, 0), in_memory)
    later, local, from_memory = [], [], []
    for epoch in (1, 2):  # in turn
        later.append(_time_epoch(_Pieces(pieces, epoch), whole))
        from_memory.append(_time_epoch(_Pieces(pieces, epoch), in_memory)[0])
        local.append(_time_epoch(_Pieces(list(_pieces(data, is_local=True)), epoch), None)[0])
    found["later_epoch_seconds"], found["local_seconds"] = min(seconds for seconds, _ in later), min(local)
    found["later_in_memory_seconds"] = min(from_memory)
    found["in_order_seconds"] = _time_epoch(Shards(data), None)[0]
    found["later_hit_share"] = min(share for _, share in later)
    few = pieces[: min(1_500, len(pieces) // 2)]
    half = f"disk:{folder / 'half'}:{sum(_room(piece) for piece in few) / 2e6}MB"
    shares = [_time_epoch(_Pieces(few, epoch), half)[1] for epoch in range(3)]
    found["half_hit_share"] = shares[-1]
    return found


def _room(piece: RemotePiece) -> int:
    """Return what a piece takes of a cache: whole blocks, with some 200 bytes that say what it is."""
    return -(-(piece.length + 200) // 4_096) * 4_096


def _time_epoch(source: FiniteSource, cache: str | None) -> tuple[float, float]:
    """Return the seconds from the first job to the last, and the share of hits."""
    pipeline = hr.Pipeline(source, stages=[hr.fetch("fetch"), hr.stage("size", len)], delivery=hr.collect())
    stages = {"fetch": {"workers": _WORKERS, "executor": "thread", **({"cache": cache} if cache else {})}}
    began = time.perf_counter()
    result = hr.run(pipeline, hr.Plan.from_table({"stages": stages, "source": {"receive_batch": 64}}))
    seconds = time.perf_counter() - began
    assert result.counters.delivered == result.counters.received
    return seconds, result.counters.notes.get("fetch.cache_hits", 0) / result.counters.received


def _pieces(data: Path, *, is_local: bool = False) -> Iterator[Any]:
    for shard in find_shards(data) or ():
        size = shard.stat().st_size
        for sample in list_shard(shard).samples:
            for one in sample.parts.values():
                yield (
                    Piece(shard, one.offset, one.length, one.crc32)
                    if is_local
                    else RemotePiece("s3://bench", shard.name, one.offset, one.length, size, '"1"', one.crc32)
                )


def _one_by_one(bucket: Bucket, piece: RemotePiece) -> bytes:
    return bucket.get(piece.path, piece.offset, piece.offset + piece.length, piece.etag).data


def _time(pieces: list[RemotePiece], read: Callable[[RemotePiece], bytes]) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(_WORKERS) as pool:
        lengths = sum(pool.map(lambda piece: len(read(piece)), pieces))
    assert lengths == sum(piece.length for piece in pieces)
    return time.perf_counter() - began


@contextmanager
def serve(data: Path) -> Iterator[None]:
    """Answer ranges of files from a program of its own; the environment leads there."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.feed.link_server",
        str(data),
        str(LATENCY_SECONDS),
        str(BYTES_PER_SECOND),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        settings = {"AWS_ENDPOINT_URL": server.stdout.readline().strip(), "AWS_ACCESS_KEY_ID": "x",
                    "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}  # fmt: skip
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
            server.kill()


def as_text(found: dict[str, Any]) -> str:
    """Return a paragraph."""
    naive, speedup = found["one_by_one_seconds"], found["reader_speedup"]
    return (
        f"## Reading {found['items']:,} items over a link: first byte after 25 ms, 50 MB/s (made by a loopback server)\n\n"
        f"The reader alone takes {found['seconds']:.2f} s by joined requests: {found['reader_share']:.2f} of what the link "
        f"allows. One request for each item, by {_WORKERS} threads, takes {naive:.2f} s: {speedup:.1f} times as long.\n\n"
        "| epoch of a pipeline that fetches | seconds |\n|---|---|\n"
        f"| without a cache, in order | {found['uncached_seconds']:.2f} |\n"
        f"| first, kept in memory | {found['first_in_memory_seconds']:.2f} |\n"
        f"| first, kept on disk | {found['first_epoch_seconds']:.2f} |\n"
        f"| later, in another order, from memory | {found['later_in_memory_seconds']:.2f} |\n"
        f"| later, in another order, from disk | {found['later_epoch_seconds']:.2f} |\n"
        f"| the same shards on this disk, in another order | {found['local_seconds']:.2f} |\n"
        f"| the same, in order | {found['in_order_seconds']:.2f} |\n\n"
        f"First epoch: {found['first_epoch_share']:.2f} of the link (goal: 0.95). Later ones: {found['later_share']:.2f} of "
        f"the local disk (goal: 0.97), {found['speedup']:.1f} times as fast as uncached (goal: 3), "
        f"{found['later_hit_share']:.3f} of the items hit. A cache of half the size hits {found['half_hit_share']:.3f} in the "
        f"third epoch (goal: 0.49 to 0.51). The first epoch kept {found['first_epoch_cores']:.2f} cores busy, its server "
        f"among them; the pipeline alone took {found['first_epoch_cpu_seconds']:.2f} s of CPU time."
    )
