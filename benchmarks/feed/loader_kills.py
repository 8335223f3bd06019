"""A training program that reads by `hr.loader` is killed at random moments and goes on: what is lost, doubled or wrong.

    python -m benchmarks.feed.loader_kills FOLDER --kills 200

Each start reads with another number of threads, bytes ahead and samples of a batch, and notes what it got before it writes the
state, as a program does with its checkpoint. What was noted in all starts must be the sequence of a program that nobody killed,
and the bytes those that were packed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.store.formats import FORMATS
from headrace.store.loader import Loader
from headrace.store.loading_work import LoadedSample
from headrace.store.order import Order
from headrace.store.shard_writer import ShardWriter

_SEED, _PER_SHARD, _STATE, _NOTES = 7, 150, "state.json", "samples.txt"


def make_shards(folder: Path, number: int) -> None:
    """Write shards of samples, each of two files."""
    folder.mkdir(parents=True)
    draw = random.Random(3)
    for shard, first in enumerate(range(0, number, _PER_SHARD)):
        grown = ShardWriter(folder / f".{shard}.partial")
        for sample in range(first, min(number, first + _PER_SHARD)):
            grown.append(f"{sample:06d}.jpg", f"{sample} ".encode() + draw.randbytes(draw.choice([0, 100, 20_000])))
            grown.append(f"{sample:06d}.cls", b"%d" % sample)
        FORMATS["tar"].finish(grown, folder / f"shard-{shard:06d}.tar")
        grown.close()


def train(folder: Path, seed: int, epochs: int) -> None:
    """Read from where the state says until the end of some epochs; every batch a checkpoint."""
    draw = random.Random(seed)
    state, notes = folder / _STATE, folder / _NOTES
    with _open(folder, draw) as loader, notes.open("ab") as file:
        known: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {"notes": 0}
        file.truncate(known["notes"])  # what was noted without a state behind it is read again
        file.seek(known["notes"])
        if "state" in known:
            loader.resume(bytes.fromhex(known["state"]))
        while loader.epoch < epochs:
            for batch in loader:
                file.write(b"".join(f"{sample.key} {_sum(sample)}\n".encode() for sample in batch))
                file.flush()
                partial = folder / f"{_STATE}.partial"
                partial.write_text(json.dumps({"state": loader.state().hex(), "notes": file.tell()}))
                os.replace(partial, state)


def _open(folder: Path, draw: random.Random) -> Loader:
    """Return a loader with settings that are drawn."""
    return hr.loader(
        folder / "data", draw.choice([1, 7, 16]), seed=_SEED, block=32, workers=draw.choice([1, 2, 4]),
        ahead_bytes=draw.choice([1, 100_000, 1 << 24]), collate=list,
    )  # fmt: skip


def _sum(sample: LoadedSample) -> int:
    return zlib.crc32(b"".join(sample.parts[part] for part in sorted(sample.parts)))


def kill(folder: Path, kills: int, *, samples: int = 600, epochs: int = 3, seed: int = 1) -> dict[str, Any]:
    """Return how many kills hit, and how many samples were lost, doubled, out of order or wrong."""
    make_shards(folder / "data", samples)
    draw, hits, starts, rounds, wrong_rounds = random.Random(seed), 0, 0, 0, 0
    counts = {"samples": 0, "lost": 0, "doubled": 0, "wrong": 0}
    with _open(folder, random.Random(0)) as loader:
        sums = {sample.key: _sum(sample) for batch in loader for sample in batch}
    order = Order(samples, _SEED, block=32)
    expected = [f"{one:06d}" for epoch in range(epochs) for one in order.samples(epoch, 0, samples).tolist()]
    while hits < kills:
        rounds += 1
        for name in (_STATE, _NOTES):
            (folder / name).unlink(missing_ok=True)
        done = False
        for is_last in (*[False] * min(8, kills - hits), True):
            starts += 1
            done, hit = _start(folder, starts, epochs, None if is_last else draw.uniform(0.0, 0.25))
            hits += hit
            if done:
                break
        found = [line.split() for line in (folder / _NOTES).read_text().splitlines()]
        keys = [key for key, _ in found]
        wrong_rounds += keys != expected
        counts["samples"] += len(expected)
        counts["wrong"] += sum(sums.get(key) != int(told) for key, told in found)
        for key in sums:
            more = keys.count(key) - epochs
            counts["doubled" if more > 0 else "lost"] += abs(more)
    return {"kills": hits, "starts": starts, "rounds": rounds, "other_order": wrong_rounds, **counts}


def _start(folder: Path, seed: int, epochs: int, seconds: float | None) -> tuple[bool, bool]:
    """Start the program, and kill it so long after it is ready; return whether it came to its end, and whether the kill hit."""
    command = [sys.executable, "-m", "benchmarks.feed.loader_kills", str(folder), "--train", str(seed), str(epochs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        if seconds is not None:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
        code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the program ended with {code}")
    return code == 0, code != 0


def main() -> None:
    """Kill as often as asked, or be the program that is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--train", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        print("ready", flush=True)
        train(args.folder, *args.train)
        return
    print(json.dumps(kill(args.folder, args.kills)))


if __name__ == "__main__":
    main()
