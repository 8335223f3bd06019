"""`headrace pack --try` in ten planted situations: is what it names as fast as the best, when all data are packed and read?

Each situation is a kind of data, a disk, an order and a state of the page cache. The trial sees a part of the files. Then all
of them are packed in each format, and an epoch is read and decoded, each format in turn, opening included.
The answer is right if its epoch takes at most 1.05 times as long as that of any other format, in each round; wrong if it
takes longer in each round; else the situation is not clear, and counts neither way. `none` is the folder.

An epoch has to last many times as long as a step of the kernel's limit, which lets reads through by the tenth of a second, and
to have more items than a row group of Parquet (64): few photos lie in one, which is then read once whatever the order.

A slow disk is this one behind the kernel's limit of reads (cgroups of version 1, which root may make). Without it those
situations are left out, and counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from headrace.base.page_cache import evict, residency, state_of, warm
from headrace.cli.pack_try import try_formats
from headrace.cli.pack_ways import Way, write_ways
from headrace.sources.folder import Folder
from headrace.stages.decode import decode

_ROUNDS, _NEAR, _TRIED = 5, 1.05, 200
_GROUP = Path("/sys/fs/cgroup/blkio")


@dataclass(frozen=True, slots=True)
class Situation:
    """What is planted."""

    data: str
    order: str
    cache: str
    limit: tuple[str, int] | None = None
    """The name of a limit of blkio.throttle and its number for each second; None: the disk as it is."""

    def describe(self) -> str:
        """Return it in words."""
        rate = "" if self.limit is None else f", {self.limit[1]:,} {_UNITS[self.limit[0]]}"
        return f"{self.data}, {self.order}, {self.cache}{rate}"


_READS, _BYTES = "read_iops_device", "read_bps_device"
_UNITS = {_READS: "reads/s", _BYTES: "bytes/s"}

SITUATIONS = (
    Situation("records of 1 kB", "sequential", "warm"),
    Situation("records of 1 kB", "sequential", "cold", (_READS, 1_000)),
    Situation("records of 1 kB", "random", "cold", (_READS, 1_000)),
    Situation("photos of 352 pixels", "random", "warm"),
    Situation("photos of 352 pixels", "sequential", "cold", (_READS, 1_000)),
    Situation("photos of 352 pixels", "random", "cold", (_BYTES, 40_000_000)),
    Situation("photos of 2,000 pixels", "sequential", "warm"),
    Situation("photos of 2,000 pixels", "random", "cold", (_READS, 1_000)),
    Situation("volumes of 6 MB", "sequential", "cold", (_BYTES, 100_000_000)),
    Situation("volumes of 6 MB", "random", "warm"),
)


def run(*, quick: bool) -> dict[str, Any]:
    """Return what was named in each situation, and what an epoch takes in each format."""
    chosen = SITUATIONS[:1] + SITUATIONS[-1:] if quick else SITUATIONS
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix=".choice-", dir=Path.cwd()) as name:
        for data in dict.fromkeys(one.data for one in chosen):
            folder = Path(name) / f"{len(found)}"
            make, decoded = _DATA[data]
            make(folder / "files", quick)
            (folder / "packed").mkdir()
            ways = write_ways(
                {file.name: file.read_bytes() for file in (folder / "files").iterdir()}, folder / "packed"
            )
            for one in (one for one in chosen if one.data == data):
                with contextlib.suppress(NoLimit), limited(one.limit, folder):
                    found.append(_judge(one, folder, ways, decode if decoded else None))
                    print(json.dumps(found[-1]), file=sys.stderr)
    counts = {what: sum(one["answer"] == what for one in found) for what in ("right", "wrong", "unclear")}
    return {"situations": found, "tried": len(found), "left_out": len(chosen) - len(found), **counts}


def _judge(
    situation: Situation, folder: Path, ways: Mapping[str, Way], decoder: Callable[[bytes], object] | None
) -> dict[str, Any]:
    trial = try_formats(Folder(folder / "files", patterns=("*",)), _TRIED, folder)
    named = trial.best.get(f"{situation.order}, {situation.cache}", "not measured")
    ways = {name: way for name, way in ways.items() if situation.order == "sequential" or not way.in_order_only}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_ROUNDS):
        for name in list(ways) if turn % 2 else reversed(ways):
            times[name].append(_read_epoch(situation, ways[name], len(ways["folder"].files), decoder))
    mine = times.get("folder" if named == "none" else named, [float("inf")] * _ROUNDS)
    # Of the same round, as the machine's speed drifts.
    over = max((list(map(truediv, mine, values)) for values in times.values()), key=statistics.median)
    best = min(ways, key=lambda name: statistics.median(map(truediv, times[name], times["folder"])))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    return {"situation": situation.describe(), "named": named, "best": best,
            "over_best": statistics.median(over), "over_best_least": min(over), "over_best_most": max(over),
            "answer": _judge_ratios(over), "seconds": seconds}  # fmt: skip


def _judge_ratios(over: list[float]) -> str:
    """Return whether an answer is right, by what it takes over the best format in each round."""
    if max(over) <= _NEAR:
        return "right"
    return "wrong" if min(over) > _NEAR else "unclear"


def _read_epoch(situation: Situation, way: Way, number: int, decoder: Callable[[bytes], object] | None) -> float:
    order = list(range(number))
    if situation.order == "random":
        random.Random(5).shuffle(order)
    if situation.cache == "warm":
        warm(way.files)
    else:
        for file in way.files:
            evict(file)
    if state_of(residency(way.files).share) != situation.cache:
        raise RuntimeError(f"the files are not {situation.cache}")
    began, count = time.perf_counter(), 0
    for data in way.open()(order):
        if decoder is not None:
            decoder(data)
        count += 1
    assert count == number
    return time.perf_counter() - began


class NoLimit(Exception):
    """This machine does not let a benchmark limit its disk."""


@contextlib.contextmanager
def limited(limit: tuple[str, int] | None, folder: Path) -> Iterator[None]:
    """Limit what this process reads from the disk of a folder.

    Raises:
        NoLimit: If the kernel does not do that for us.
    """
    if limit is None:
        yield
        return
    group = _GROUP / f"headrace-bench-{os.getpid()}"
    device = folder.stat().st_dev
    try:
        group.mkdir()
        (group / f"blkio.throttle.{limit[0]}").write_text(f"{os.major(device)}:{os.minor(device)} {limit[1]}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise NoLimit(str(error)) from None
    try:
        yield
    finally:
        (_GROUP / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _make_records(folder: Path, quick: bool) -> None:
    draw = random.Random(1)
    _write(folder, "json", (draw.randbytes(draw.randint(300, 900)).hex().encode() for _ in range(1_500)))


def _make_volumes(folder: Path, quick: bool) -> None:
    draw = random.Random(1)
    _write(folder, "bin", (draw.randbytes(6_000_000) for _ in range(8 if quick else 32)))


def _make_photos(folder: Path, side: int, number: int) -> None:
    noise = np.random.default_rng(1)

    def photos() -> Iterator[bytes]:
        for _ in range(number):
            rough = noise.integers(0, 256, (side // 16, side // 16, 3), np.uint8)
            picture = cv2.resize(rough, (side, side), interpolation=cv2.INTER_CUBIC)
            yield cv2.imencode(".jpg", picture)[1].tobytes()

    _write(folder, "jpg", photos())


def _write(folder: Path, ending: str, contents: Iterator[bytes]) -> None:
    folder.mkdir(parents=True)
    for number, data in enumerate(contents):
        (folder / f"{number:05d}.{ending}").write_bytes(data)


#: {kind of data: (makes the files, whether they are decoded as images)}.
_DATA: dict[str, tuple[Callable[[Path, bool], None], bool]] = {
    "records of 1 kB": (_make_records, False),
    "photos of 352 pixels": (lambda folder, quick: _make_photos(folder, 352, 600), True),
    "photos of 2,000 pixels": (lambda folder, quick: _make_photos(folder, 2_000, 100), True),
    "volumes of 6 MB": (_make_volumes, False),
}


def as_text(found: dict[str, Any]) -> str:
    """Return a table."""
    formats = list(dict.fromkeys(name for one in found["situations"] for name in one["seconds"]))
    lines = [
        "## What `pack --try` names in planted situations",
        "",
        (
            f"Seconds of an epoch over all files, opened, read and decoded: median of {_ROUNDS} rounds in turn; over the best: "
            "median of the rounds' ratios, least and most. A slow disk is this one with a limit of the kernel. TFRecord and "
            "LMDB are read in order only."
        ),
        "",
        f"| situation | {' | '.join(formats)} | named | over the best | |",
        f"|---|{'---|' * len(formats)}---|---|---|",
    ]
    for one in found["situations"]:
        cells = (f"{one['seconds'][name]:.3f}" if name in one["seconds"] else "-" for name in formats)
        over = f"x{one['over_best']:.2f} ({one['over_best_least']:.2f} to {one['over_best_most']:.2f})"
        lines.append(f"| {one['situation']} | {' | '.join(cells)} | {one['named']} | {over} | {one['answer']} |")
    left_out = "" if not found["left_out"] else f" {found['left_out']} could not be made on this machine."
    clear = found["tried"] - found["unclear"]
    unclear = f" {found['unclear']} not clear, and not counted." if found["unclear"] else ""
    lines += ["", f"Within 5 % of the best: {found['right']} of {clear} (goal: 9 of 10).{unclear}{left_out}"]
    return "\n".join(lines)
