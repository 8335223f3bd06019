"""Run folders of a few cases in the repository, so that rules can be judged again in less than a minute.

Each is `recordings/SEED.tar.xz` with the run folder and `row.json`, which holds the measured truth. Diagnosing them again is
for development: it predicts what is known already, and is no result. `python -m benchmarks.truth --store FOLDER` adds those
that a run with `--keep` left and whose truth is clear.
"""

from __future__ import annotations

import multiprocessing
import os
import tarfile
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.truth.judging import freeze
from benchmarks.truth.rows import Row

FOLDER = Path(__file__).parent / "recordings"
ROW = "row.json"


def store(row: Row, run_folder: Path, folder: Path = FOLDER) -> Path:
    """Put a run folder and its row into the repository, and return the file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{row.seed}.tar.xz"
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(path, "w:xz", preset=9) as archive:
        archive.add(run_folder, "run", filter=_anonymous)
        file = Path(scratch, ROW)
        file.write_bytes(msgspec.json.encode(row))
        archive.add(file, ROW, filter=_anonymous)
    return path


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def row_of(path: Path) -> Row:
    """Return the row of a recording, with what was said and predicted when it was made."""
    with tarfile.open(path) as archive:
        file = archive.extractfile(ROW)
        assert file is not None
        return msgspec.json.decode(file.read(), type=Row)


def diagnose_again(folder: Path = FOLDER) -> list[Row]:
    """Return the rows of all recordings with what is said and predicted of them today, on all cores."""
    paths = sorted(folder.glob("*.tar.xz"))
    # Not forked: this process may have threads, which a fork would leave behind half way.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0)), mp_context=context) as pool:
        return list(pool.map(diagnose_one, paths))


def diagnose_one(path: Path) -> Row:
    """Return the row of one recording with what is said and predicted of it today."""
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(path) as archive:
        archive.extractall(scratch, filter="data")
        row = row_of(path)
        frozen = freeze(row.seed, Path(scratch, "run"), row.predictions)
    return msgspec.structs.replace(row, said=frozen.said, predictions=frozen.predictions)
