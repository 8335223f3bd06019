"""`headrace pack` beside `cp -r` and `sha256sum` of the same files; processes, in turn, the start of the program included."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.feed.data import make_files, pack


def run(*, quick: bool) -> dict[str, Any]:
    """Return seconds of both, and how fast packing is in relation: above 1 it is faster."""
    number, rounds = (1_000, 1) if quick else (10_000, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder / "files", number)
        num_bytes = sum(file.stat().st_size for file in (folder / "files").rglob("*.jpg"))
        ours, theirs = [], []
        for turn in range(rounds + 1):
            copy = _timed(lambda: _copy_and_hash(folder / "files", folder / "copy"), folder / "copy")
            packed = _timed(lambda: pack(folder / "files", folder / "data"), folder / "data")
            shutil.rmtree(folder / "data.checkpoint")
            if turn:
                theirs.append(copy)
                ours.append(packed)
    ratio = statistics.median(copy / packed for copy, packed in zip(theirs, ours, strict=True))
    return {"files": number, "bytes": num_bytes, "rounds": rounds, "pack_seconds": statistics.median(ours),
            "cp_sha256_seconds": statistics.median(theirs), "ratio": ratio}  # fmt: skip


def _copy_and_hash(files: Path, copy: Path) -> None:
    script = f"cp -r '{files}' '{copy}' && find '{copy}' -type f -print0 | xargs -0 sha256sum > /dev/null"
    subprocess.run(["sh", "-c", script], check=True)


def _timed(function: Callable[[], object], made: Path) -> float:
    began = time.perf_counter()
    function()
    seconds = time.perf_counter() - began
    shutil.rmtree(made)
    return seconds


def as_text(found: dict[str, Any]) -> str:
    """Return a paragraph."""
    ours, theirs, rounds = found["pack_seconds"], found["cp_sha256_seconds"], found["rounds"]
    title = f"## Packing {found['files']:,} files, {found['bytes'] / 1e6:,.0f} MB"
    return (
        f"{title}\n\n`headrace pack` takes {ours:.2f} s, `cp -r` and `sha256sum` {theirs:.2f} s (medians of {rounds} "
        f"rounds in turn): {found['ratio']:.2f} times the speed (goal: 0.9). The start of the program counts, and that "
        "packing waits until its shards are on the disk."
    )
