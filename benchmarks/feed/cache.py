"""The disk cache under kills and under readers that want the same: what is wrong, what is downloaded twice, what a hit costs.

    python -m benchmarks.feed.cache FOLDER [--kills 500] [--rounds 1000] [--damage]

Kills: two processes look up and keep random items; one of them is killed at a random moment (SIGKILL) and another begins. What
is read is compared with what belongs there; the room in use is compared with the limit after each kill, and counted again at
the end. With --damage the file that counts the room is overwritten after each kill, while it is in use. Readers: eight
processes meet at a barrier and ask for one cold item; a download sleeps and is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.store.cache_key import make_key
from headrace.store.disk_cache import DiskCache
from headrace.store.memory_cache import MemoryCache

_LIMIT = 4_000_000
_NUM_ITEMS = 400
_DOWNLOAD_SECONDS = 0.005
_READERS = 8


def content(number: int) -> bytes:
    """Return what belongs to an item: 1 to 64,000 bytes that no other has."""
    seed = hashlib.sha256(b"%d" % number).digest()
    return (seed * 2_001)[: 1 + int.from_bytes(seed[:4], "big") % 64_000]


def run_kills(folder: Path, kills: int, *, damages: bool = False) -> dict[str, int]:
    """Return how many kills there were, and what came of them; `usage` may be damaged after each, while it is in use."""
    context = multiprocessing.get_context("fork")
    seen, wrong = context.RawValue("q", 0), context.RawValue("q", 0)  # a lock would die with who holds it
    found: dict[str, int] = {"kills": 0, "over_limit": 0}
    writers: list[Any] = []
    for number in range(kills + 2):
        if len(writers) == 2:
            time.sleep(random.random() * 0.02)
            killed = writers.pop(0)
            os.kill(killed.pid, signal.SIGKILL)
            killed.join()
            found["kills"] += 1
            found["over_limit"] += _bytes_while_stopped(folder, writers[0].pid) > _LIMIT
            if damages:
                next(folder.glob("*/usage")).write_bytes(random.randbytes(random.randrange(16)))
        ready = context.Event()
        writer = context.Process(target=_write, args=(folder, number, ready, seen, wrong))
        writer.start()
        writers.append(writer)
        ready.wait()
    for writer in writers:
        writer.kill()
        writer.join()
    cache = DiskCache(folder, _LIMIT)
    for number in range(_NUM_ITEMS):
        got = cache.get(make_key(b"kills", str(number)))
        wrong.value += got is not None and got[0] != content(number)
    left = len(list((cache.folder / "tmp").iterdir()))
    return {
        **found, "lookups": seen.value, "wrong": wrong.value, "damaged": cache.num_damaged, "files_left": left,
        "room_not_of_files": abs(cache.num_bytes - _bytes_of_files(folder)),
    }  # fmt: skip


def _write(folder: Path, seed: int, ready: Any, seen: Any, wrong: Any) -> None:
    cache = DiskCache(folder, _LIMIT)
    cache._admission.evicts = bool(seed % 2)  # noqa: SLF001 - both policies, whatever would be measured
    draw = random.Random(seed)
    ready.set()
    while True:
        number = draw.randrange(_NUM_ITEMS)
        key = make_key(b"kills", str(number))
        got = cache.get(key)
        seen.value += 1  # not exact: two add at once
        if got is None:
            cache.put(key, content(number), None)
        elif got[0] != content(number):
            wrong.value += 1


def _bytes_while_stopped(folder: Path, pid: int) -> int:
    """Return the bytes of files while the other writer stands still: it would replace files that were counted already."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    size = _bytes_of_files(folder)
    os.kill(pid, signal.SIGCONT)
    return size


def _bytes_of_files(folder: Path) -> int:
    size = 0
    for path in folder.glob("*/??/*"):
        with contextlib.suppress(FileNotFoundError):
            size += -(-path.stat().st_size // 4_096) * 4_096
    return size


def run_readers(folder: Path, rounds: int) -> dict[str, float]:
    """Return how often each of the cold items was downloaded, and how many readers got something else."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(_READERS)
    downloads, wrong = context.Value("q", 0), context.Value("q", 0)
    readers = [context.Process(target=_read, args=(folder, rounds, barrier, downloads, wrong)) for _ in range(_READERS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    num_failed = sum(reader.exitcode != 0 for reader in readers)
    return {
        "rounds": rounds, "readers": _READERS, "wrong": wrong.value + num_failed,
        "downloads_per_item": downloads.value / max(1, rounds),
    }  # fmt: skip


def _read(folder: Path, rounds: int, barrier: Any, downloads: Any, wrong: Any) -> None:
    cache = DiskCache(folder, 64 * _LIMIT)
    for number in range(rounds):
        key = make_key(b"readers", str(number))
        barrier.wait()
        got = cache.get(key)
        claim = None
        if got is None:
            claim = cache.flights.claim(key) or cache.flights.wait(key)
            got = cache.get(key)
        if got is None:
            time.sleep(_DOWNLOAD_SECONDS)
            with downloads.get_lock():
                downloads.value += 1
            got = (content(number), None)
            cache.put(key, got[0], None)
        if claim is not None:
            claim.release()
        if got[0] != content(number):
            with wrong.get_lock():
                wrong.value += 1


def time_hits(folder: Path) -> dict[str, float]:
    """Return the CPU time of a hit of 30 kB, us, best of five passes over 200 items."""
    found = {}
    for name, cache in (("memory", MemoryCache(1 << 24)), ("disk", DiskCache(folder, 1 << 24))):
        keys = [make_key(b"hits", str(number)) for number in range(200)]
        for key in keys:
            cache.put(key, np.random.default_rng(0).bytes(30_000), None)
        passes = []
        for _ in range(5):
            began = time.thread_time()
            for key in keys:
                cache.get(key)
            passes.append((time.thread_time() - began) / len(keys) * 1e6)
        found[name] = round(min(passes), 1)
    return found


def run(*, quick: bool) -> dict[str, Any]:
    """Return what came of kills and readers, and what hits cost."""
    kills, rounds = (20, 30) if quick else (500, 1_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killed = run_kills(folder / "kills", kills)
        read = run_readers(folder / "readers", rounds)
        hits = time_hits(folder / "hits")
    return {
        "hit_us": hits["disk"], "memory_hit_us": hits["memory"], "kills": killed["kills"],
        "wrong": int(killed["wrong"] + read["wrong"]), "after_kills": killed, "readers": read,
    }  # fmt: skip


def as_text(found: dict[str, Any]) -> str:
    """Return a paragraph."""
    killed, read = found["after_kills"], found["readers"]
    return (
        "## The disk cache under kills, and under readers that want the same\n\n"
        f"{killed['kills']:,} kills (SIGKILL at a random moment, two processes at a time, {killed['lookups']:,} lookups): "
        f"{killed['wrong']} wrong, {killed['damaged']} damaged, {killed['over_limit']} times over the limit, "
        f"{killed['files_left']} files left, {killed['room_not_of_files']} bytes of room without a file (goal: 0 of each).\n\n"
        f"{read['rounds']:,} rounds of {read['readers']} processes that ask for one cold item: {read['wrong']} wrong, "
        f"{read['downloads_per_item']:.3f} downloads an item (goal: 1.05).\n\n"
        f"A hit of 30 kB costs {found['hit_us']} us of CPU from disk (page cache, CRC-32 checked) and "
        f"{found['memory_hit_us']} us from memory."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--damage", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps({
        "kills": run_kills(arguments.folder / "kills", arguments.kills, damages=arguments.damage),
        "readers": run_readers(arguments.folder / "readers", arguments.rounds),
    }))  # fmt: skip
