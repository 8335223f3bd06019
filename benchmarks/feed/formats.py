"""Reading items of 30 kB: from tar shards with an index, beside a bare `pread` and what others use; in turn, round by round."""

from __future__ import annotations

import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.feed.data import make_files, pack
from headrace.store.shard_reader import ShardReader
from headrace.store.shards import find_shards, list_shard

Way = Callable[[], int]


def run(*, quick: bool) -> dict[str, Any]:
    """Return microseconds for each item, by way: the median over rounds, with the least and the most."""
    number, rounds = (1_500, 5) if quick else (5_000, 9)
    with tempfile.TemporaryDirectory() as folder:
        files, data = Path(folder) / "files", Path(folder) / "data"
        make_files(files, number)
        pack(files, data)
        ways = {**random_ways(files, data), **sequential_ways(data)}
        times: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, way in ways.items():
                began, cpu_began = time.perf_counter(), time.process_time()
                count = way()
                if turn:  # the first warms up
                    times[name].append((time.perf_counter() - began) / count * 1e6)
                    cpu[name].append((time.process_time() - cpu_began) / count * 1e6)
    found: dict[str, Any] = {
        name: {"us": statistics.median(times[name]), "least_us": min(times[name]), "most_us": max(times[name]),
               "cpu_us": statistics.median(cpu[name])}
        for name in ways
    }  # fmt: skip
    ratios = {
        "random_over_pread": _ratio(times, "random: tar + index, unchecked", "random: pread"),
        "random_checked_over_pread": _ratio(times, "random: tar + index, CRC-32", "random: pread"),
        "tarfile_over_sequential": _ratio(times, "sequential: Python's tarfile", "sequential: tar + index, unchecked"),
        "tarfile_over_sequential_checked": _ratio(
            times, "sequential: Python's tarfile", "sequential: tar + index, CRC-32"
        ),
    }
    if "sequential: WebDataset" in ways:
        for kind in ("unchecked", "CRC-32"):
            name = "webdataset_over_sequential" + ("" if kind == "unchecked" else "_checked")
            ratios[name] = _ratio(times, "sequential: WebDataset", f"sequential: tar + index, {kind}")
    return {"items": number, "rounds": rounds, "ways": found, **ratios}


def _ratio(times: dict[str, list[float]], above: str, below: str) -> float:
    """Return the median over rounds of one way's time over another's in the same round."""
    return statistics.median(one / other for one, other in zip(times[above], times[below], strict=True))


def random_ways(files: Path, data: Path) -> dict[str, Way]:
    """Return ways to read all items in one random order."""
    unchecked, checked = ShardReader(data, checks=False), ShardReader(data)
    order = list(range(len(checked)))
    random.Random(3).shuffle(order)
    handles = {shard: os.open(shard, os.O_RDONLY) for shard in find_shards(data) or ()}
    stored = [(handles[shard], one.length, one.offset) for shard in handles for sample in list_shard(shard).samples
              for one in sample.parts.values()]  # fmt: skip
    places = [stored[index] for index in order]
    paths = sorted(str(path) for path in files.rglob("*.jpg"))
    shuffled = [paths[index] for index in order]

    def bare() -> int:
        pread = os.pread
        for handle, length, offset in places:
            pread(handle, length, offset)
        return len(places)

    def by_index(reader: ShardReader) -> Way:
        def read() -> int:
            one = reader.read
            for number in order:
                one(number)
            return len(order)

        return read

    def by_file() -> int:
        for path in shuffled:
            with open(path, "rb") as file:
                file.read()
        return len(shuffled)

    return {
        "random: pread": bare,
        "random: tar + index, unchecked": by_index(unchecked),
        "random: tar + index, CRC-32": by_index(checked),
        "random: folder, open and read": by_file,
    }


def sequential_ways(data: Path) -> dict[str, Way]:
    """Return ways to read all items in order; opening shards and indexes counts."""
    shards = find_shards(data) or []

    def by_index(*, checks: bool) -> Way:
        def read() -> int:
            reader = ShardReader(data, checks=checks)
            for number in range(len(reader)):
                reader.read(number)
            reader.close()
            return len(reader)

        return read

    def by_tarfile() -> int:
        count = 0
        for shard in shards:
            with tarfile.open(shard) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    file.read()
                    count += 1
        return count

    ways: dict[str, Way] = {
        "sequential: tar + index, unchecked": by_index(checks=False),
        "sequential: tar + index, CRC-32": by_index(checks=True),
        "sequential: Python's tarfile": by_tarfile,
    }
    try:
        import webdataset
    except ImportError:  # in the extra `bench`; without it the peer is absent
        return ways

    def by_webdataset() -> int:
        dataset = webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False, empty_check=False)
        return sum(1 for _ in dataset)

    ways["sequential: WebDataset"] = by_webdataset
    return ways


def as_text(found: dict[str, Any]) -> str:
    """Return a table."""
    lines = [
        f"## Reading {found['items']:,} items of 20 to 40 kB, warm; us an item, median of {found['rounds']} rounds in turn",
        "",
        "| way | us | least to most | CPU us |",
        "|---|---|---|---|",
    ]
    for name, one in found["ways"].items():
        lines.append(
            f"| {name} | {one['us']:.1f} | {one['least_us']:.1f} to {one['most_us']:.1f} | {one['cpu_us']:.1f} |"
        )
    lines += ["", _random_text(found)]
    lines.append(
        f"Sequential: Python's tarfile takes {found['tarfile_over_sequential']:.1f} times as long unchecked, "
        f"{found['tarfile_over_sequential_checked']:.1f} times with CRC-32 (goal: 5)."
    )
    if "webdataset_over_sequential" in found:
        lines.append(
            f"WebDataset takes {found['webdataset_over_sequential']:.1f} times as long unchecked, "
            f"{found['webdataset_over_sequential_checked']:.1f} times with CRC-32 (goal: 3)."
        )
    return "\n".join(lines)


def _random_text(found: dict[str, Any]) -> str:
    unchecked, checked = found["random_over_pread"], found["random_checked_over_pread"]
    return f"Random, over a bare pread: {unchecked:.2f} unchecked, {checked:.2f} with CRC-32 (goal: 1.1)."
