"""Batches of decoded JPEGs: hr.loader beside PyTorch's DataLoader, SPDL, WebDataset, litdata and Ray Data, each at its best.

Each library runs in a process of its own (see `loader_ways`), in turn, several times; the best setting of each is compared with
the others of the same round. The limit is what both cores decode from memory at that moment, without reading and batching. The
pixels of all settings are compared. A library that is not installed, fails, or takes too long is left out, and the reason said.
Those that headrace does not need may lie in any folder:

    pip install --target PEERS --no-deps spdl spdl-core litdata tifffile
    PYTHONPATH=PEERS python -m benchmarks.feed --only loader
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from operator import truediv
from pathlib import Path
from typing import Any

import cv2

from benchmarks.feed.data import pack
from benchmarks.feed.loader_ways import LIBRARIES
from headrace.samples.generator import make

_SIDE = 352
_SLOW_TO_START = ("WebDataset", "litdata", "Ray Data")
#: Of one process; it takes a tenth of that here.
_PATIENCE_SECONDS = 180.0


def run(*, quick: bool) -> dict[str, Any]:
    """Return images per second of each library at its best, and the ratios."""
    number, rounds, epochs = (192, 1, 1) if quick else (1_280, 3, 2)
    left_out = {name: "not tried by --quick" for name in _SLOW_TO_START if quick}
    left_out |= {name: "not installed" for name, (_, package) in LIBRARIES.items() if find_spec(package) is None}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LIBRARIES if name not in left_out}
    with tempfile.TemporaryDirectory() as folder:
        _make_images(Path(folder) / "files", number)
        pack(Path(folder) / "files", Path(folder) / "data", "--shard", "4MB")
        for _ in range(rounds):
            for name in [name for name in found if name not in left_out]:
                try:
                    found[name].append(measure_apart(name, Path(folder), epochs))
                except LeftOut as reason:
                    if name == "headrace":
                        raise
                    left_out[name] = str(reason)
    found = {name: measured for name, measured in found.items() if name not in left_out}
    sums = {name: one["sums"] for name, measured in found.items() for one in measured}
    if len({value for of_settings in sums.values() for value in of_settings.values()}) > 1:
        raise AssertionError(f"the pixels differ: {sums}")
    return {"images": number, "rounds": rounds, **_compare(found), "left_out": left_out}


def _compare(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians over rounds, and of ratios within a round, as the machine's speed drifts."""
    best = {name: [max(one["rates"].values()) for one in measured] for name, measured in found.items()}
    limits = [one["limit"] for one in found["headrace"]]
    ratios = {name: statistics.median(map(truediv, best["headrace"], rates)) for name, rates in best.items()}
    ratios.pop("headrace")
    settings = {
        name: {one: statistics.median(each["rates"][one] for each in measured) for one in measured[0]["rates"]}
        for name, measured in found.items()
    }
    values = {
        "limit": statistics.median(limits), "settings": settings,
        "best": {name: statistics.median(rates) for name, rates in best.items()},
        "limit_share": statistics.median(map(truediv, best["headrace"], limits)),
        "peers": ratios,
    }  # fmt: skip
    return values | ({"ratio_best_peer": min(ratios.values())} if ratios else {})


class LeftOut(Exception):
    """A library gave no figures; says why."""


def measure_apart(
    library: str, folder: Path, epochs: int, patience_seconds: float = _PATIENCE_SECONDS
) -> dict[str, Any]:
    """Return what a process of its own measured of a library.

    Raises:
        LeftOut: If it failed or took too long; nothing that it started goes on.
    """
    command = [sys.executable, "-m", "benchmarks.feed.loader_ways", library, str(folder), str(epochs)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said, errors = process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            raise LeftOut(f"no answer within {patience_seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise LeftOut((errors.strip().splitlines() or [f"it ended with {process.returncode}"])[-1])
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def _make_images(folder: Path, number: int) -> None:
    made = folder.parent / "made"
    make(made, count=20, seed=3)
    folder.mkdir()
    pictures = []
    for path in sorted(made.glob("*.jpg")):
        picture = cv2.imread(str(path))
        if picture is not None:
            pictures.append(cv2.resize(picture, (_SIDE, _SIDE)))
    for index in range(number):
        cv2.imwrite(str(folder / f"{index:05d}.jpg"), pictures[index % len(pictures)], [cv2.IMWRITE_JPEG_QUALITY, 88])


def as_text(found: dict[str, Any]) -> str:
    """Return a table."""
    size = f"{_SIDE} x {_SIDE}"
    lines = [
        f"## Loading {found['images']:,} JPEGs of {size} pixels: images/s, median of rounds in turn: {found['rounds']}",
        "",
        "| library | at its best | headrace over it | settings |",
        "|---|---|---|---|",
        f"| two cores, from memory | {found['limit']:,.0f} | x{found['limit_share']:.2f} | |",
    ]
    for name, rates in found["settings"].items():
        settings = ", ".join(f"{setting} {rate:,.0f}" for setting, rate in rates.items())
        over = f"x{found['peers'][name]:.2f}" if name in found["peers"] else ""
        lines.append(f"| {_shown(name)} | {found['best'][name]:,.0f} | {over} | {settings} |")
    lines += ["", f"{found['limit_share']:.2f} of what the cores decode from memory (goal: 0.95)."]
    if "ratio_best_peer" in found:
        lines.append(f"{found['ratio_best_peer']:.2f} times the fastest of the others (goal: 1.3).")
    lines += [f"{name} was left out: {reason}." for name, reason in found["left_out"].items()]
    return "\n".join(lines)


def _shown(name: str) -> str:
    with contextlib.suppress(Exception):
        return f"{name} {version(LIBRARIES[name][1])}"
    return name
