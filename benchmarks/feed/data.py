"""The data that the parts read: files of random bytes of about 30 kB, as photographs of 350 pixels are."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path


def make_files(folder: Path, number: int) -> None:
    """Fill a folder; the same bytes each time."""
    draw = random.Random(1)
    for index in range(number):
        part = folder / f"{index // 500:02d}"
        part.mkdir(parents=True, exist_ok=True)
        (part / f"{index:05d}.jpg").write_bytes(draw.randbytes(draw.randint(20_000, 40_000)))


def pack(folder: Path, data: Path, *options: str) -> None:
    """Pack a folder by the command."""
    command = [sys.executable, "-m", "headrace", "-q", "pack", str(folder), "-o", str(data), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
