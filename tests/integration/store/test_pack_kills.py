"""`headrace pack` is killed at random moments and resumed: the packed bytes are those of a run that nobody killed.

The same as a script, for many kills:

    python tests/integration/store/test_pack_kills.py --kills 500
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

FILES = 240
_ARGUMENTS = ["--shard", "300kB", "--set", "fetch.workers=4", "--set", "source.max_receives=1000"]


def make_files(folder: Path, number: int = FILES) -> None:
    """Fill a folder with files of many sizes, and some that cannot be read."""
    draw = random.Random(17)
    for index in range(number):
        part = folder / f"{index // 50}"
        part.mkdir(parents=True, exist_ok=True)
        (part / f"{index:04d}.jpg").write_bytes(draw.randbytes(draw.choice([10, 512, 9_000, 40_000])))
        if index % 4 == 0:
            (part / f"{index:04d}.cls").write_text(str(index % 10))
        if index % 60 == 7:
            (part / f"{index:04d}.png").symlink_to("/dev/zero")


def command(source: Path, output: Path, *more: str) -> list[str]:
    """Return the command that packs."""
    return [sys.executable, "-m", "headrace", "-q", "pack", str(source), "-o", str(output), *_ARGUMENTS, *more]


def content(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def packed_bytes(output: Path) -> int:
    """Return how much is in a folder, finished or not."""
    total = 0
    for file in output.iterdir() if output.is_dir() else ():
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def kill_until_done(source: Path, output: Path, kills: int, draw: random.Random) -> int:
    """Pack, killed after some bytes of each start; return how many kills hit a run that was not done."""
    more, hits = (), 0
    for _ in range(kills):
        before = packed_bytes(output)
        process = subprocess.Popen(command(source, output, *more), stderr=subprocess.PIPE)
        until = before + draw.choice([0, 1, 3_000, 40_000, 200_000, 400_000])
        wait = draw.random() * 0.01
        while process.poll() is None and packed_bytes(output) <= until:
            time.sleep(0.0005)
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL) if process.poll() is None else None
        _, said = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
        hits += process.returncode != 0
        if (output.with_name(f"{output.name}.checkpoint") / "journal.jsonl").exists():
            more = ("--resume",)
        if process.returncode == 0:
            break
    last = subprocess.run(command(source, output, *more), capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    return hits


def check_kills(folder: Path, kills: int, seed: int, note: Callable[[int], object] = lambda hits: None) -> int:
    """Compare a folder packed under kills with one packed in peace; return the kills that hit.

    Args:
        folder: For all of it.
        kills: That are to hit.
        seed: Of the moments.
        note: Called with the kills so far that changed nothing.
    """
    source = folder / "files"
    if not source.exists():
        make_files(source)
        subprocess.run(command(source, folder / "right"), check=True, capture_output=True)
    draw, hits, number = random.Random(seed), 0, 0
    while hits < kills:
        number += 1
        output = folder / f"packed-{seed}-{number}"
        hits += kill_until_done(source, output, min(8, kills - hits), draw)
        assert content(output) == content(folder / "right"), f"{output} differs"
        note(hits)
    return hits


@pytest.mark.smoke
def test_three_kills_change_no_byte(tmp_path: Path) -> None:
    """Shards, indexes, manifest and the list of what could not be read are those of a run without kills."""
    assert check_kills(tmp_path, 3, seed=1) == 3
    assert len(content(tmp_path / "right")["unreadable.jsonl"].splitlines()) == 4


def test_kills_while_rows_are_packed_change_no_byte(tmp_path: Path) -> None:
    """A resumed run reads the file from its beginning, and goes on where it was."""
    draw = random.Random(5)
    images = [draw.randbytes(draw.choice([10, 5_000, 20_000])) if number % 50 else None for number in range(300)]
    table = pa.table({"image": images, "label": list(range(300))})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    subprocess.run(command(tmp_path / "a.parquet", tmp_path / "right"), check=True, capture_output=True)
    assert kill_until_done(tmp_path / "a.parquet", tmp_path / "killed", 2, draw) == 2
    assert content(tmp_path / "killed") == content(tmp_path / "right")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 5))
def test_tens_of_kills_change_no_byte(seed: int, tmp_path: Path) -> None:
    """The same, 15 kills each."""
    assert check_kills(tmp_path, 15, seed) == 15


def main() -> None:
    """Kill as often as asked, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    hits = 0

    def note(number: int) -> None:
        nonlocal hits
        hits = number
        print(f"\r{hits} of {args.kills} kills hit and changed nothing", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        check_kills(Path(folder), args.kills, args.seed, note)
    print(f"\n{hits} kills hit; the packed bytes were right after each series")


if __name__ == "__main__":
    main()
