"""Reading packed shards over a link of 50 MB/s whose first byte takes 25 ms: by joined requests, and one request for each item.

The server is a loopback one that answers ranges as S3 does; latency and rate are made by it. There is no cache, so every epoch
is a first one.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.feed.data import make_files, pack
from headrace.base.pieces import RemotePiece
from headrace.store.object_reader import ObjectReader
from headrace.store.objects import Bucket
from headrace.store.shards import find_shards, list_shard

LATENCY_SECONDS, BYTES_PER_SECOND = 0.025, 50e6
_WORKERS = 16


def run(*, quick: bool) -> dict[str, Any]:
    """Return which share of the link the first epoch used, and how much faster that is than one request for each item."""
    number = 3_000 if quick else 12_000
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
    num_bytes = sum(piece.length for piece in pieces)
    best = num_bytes / BYTES_PER_SECOND
    return {"items": number, "bytes": num_bytes, "seconds": joined, "first_epoch_share": best / joined,
            "one_by_one_seconds": naive, "speedup": naive / joined}  # fmt: skip


def _pieces(data: Path) -> Iterator[RemotePiece]:
    for shard in find_shards(data) or ():
        size = shard.stat().st_size
        for sample in list_shard(shard).samples:
            for one in sample.parts.values():
                yield RemotePiece("s3://bench", shard.name, one.offset, one.length, size, '"1"', one.crc32)


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
    """Answer ranges of files as an object store does, late and at a limited rate; the environment leads there."""
    lock, free_at = threading.Lock(), [0.0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = data / self.path.partition("?")[0].rpartition("/")[2]
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            size = path.stat().st_size
            start, end = int(first), min(size, int(last) + 1)
            time.sleep(LATENCY_SECONDS)
            self.send_response(206)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
            self.end_headers()
            with path.open("rb") as file:
                file.seek(start)
                while start < end:
                    part = file.read(min(262_144, end - start))
                    start += len(part)
                    with lock:
                        free_at[0] = max(free_at[0], time.monotonic()) + len(part) / BYTES_PER_SECOND
                        wait = free_at[0] - time.monotonic()
                    time.sleep(max(0.0, wait))
                    self.wfile.write(part)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}", "AWS_ACCESS_KEY_ID": "x",
                "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}  # fmt: skip
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        server.shutdown()
        server.server_close()


def as_text(found: dict[str, Any]) -> str:
    """Return a paragraph."""
    naive, speedup = found["one_by_one_seconds"], found["speedup"]
    return (
        f"## Reading {found['items']:,} items over a link: first byte after 25 ms, 50 MB/s (made by a loopback server)\n\n"
        f"An epoch takes {found['seconds']:.2f} s by joined requests: {found['first_epoch_share']:.2f} of what the link "
        f"allows (goal: 0.95). One request for each item, by {_WORKERS} threads, takes {naive:.2f} s: {speedup:.1f} times as "
        "long. There is no cache yet, so later epochs are like the first."
    )
