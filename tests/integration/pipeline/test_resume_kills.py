"""A run over a folder of photographs is killed at random moments, resumed again and again, and every item comes out once.

The same as a script:

    python tests/integration/pipeline/test_resume_kills.py --kills 200
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.base.errors import ItemRejected
from headrace.base.plan import Plan
from headrace.samples.generator import make

PHOTOS = 300
PLAN = {
    "stages": {"process": {"batch": 8}, "fetch": {"workers": 2}, "decode": {"workers": 2}},
    # Kills from outside hit innocents: here as often as it takes. Few in flight, so that a start that is asked to stop does
    # not do all the rest first.
    "source": {"max_receives": 1000, "wait_seconds": 0.05, "max_in_flight": 24},
}
EXIT_DONE, EXIT_INTERRUPTED = 0, 130


class Colours(hr.Module):
    """Answers the mean colour of a photograph, and rejects some."""

    input = hr.ImageInput(short_side=32, crop=32)

    def preprocess(self, image: Any) -> Any:
        """Return the image after a while: no machine is to be done before the last kill."""
        time.sleep(0.008)
        if int(image.sum()) % 7 == 3:
            raise ItemRejected("its sum is one of those that are not wanted")
        return image

    def process(self, batch: Any) -> list[Any]:
        """Return the mean colours."""
        time.sleep(0.002)
        return [{"colour": np.round(image.mean(axis=(0, 1)), 3).tolist()} for image in batch]


def make_photos(folder: Path, number: int = PHOTOS) -> None:
    """Fill a folder with small real JPEGs under many names."""
    make(folder, count=20, seed=3)
    made = sorted(folder.glob("*.jpg"))
    for other in set(folder.iterdir()) - set(made):
        other.unlink()
    for index in range(number - len(made)):
        shutil.copy(made[index % len(made)], folder / f"photo-{index:05d}.jpg")


def work(folder: Path, results: Path, resume: bool) -> int:
    """Run the pipeline in this process; return an exit status."""
    delivery: Any = (
        hr.jsonl(results) if results.suffix == ".jsonl" else hr.parquet(results, rows_per_file=20, seconds_per_file=0.1)
    )
    pipeline = hr.Pipeline(hr.folder(folder), module=Colours(), delivery=delivery)
    result = hr.run(pipeline, Plan.from_table(PLAN), resume=resume)
    return EXIT_INTERRUPTED if result.interrupted else EXIT_DONE


class Starter:
    """Starts workers by fork from a process that has imported everything and has no threads: a hundred kills in seconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--starter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def start(self, photos: Path, results: Path, *, resume: bool) -> int:
        """Start a worker and return its process id."""
        return int(self._say(json.dumps([str(photos), str(results), resume])))

    def wait(self) -> int:
        """Return the exit status of the worker once it has ended; below 0: the signal that ended it."""
        return int(self._say("wait"))

    def close(self) -> None:
        """End the starter."""
        self._process.communicate()

    def _say(self, text: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def serve() -> None:
    """Be the other side of a Starter."""
    child = 0
    for line in sys.stdin:
        if line == "wait\n":
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        photos, results, resume = json.loads(line)
        child = os.fork()
        if not child:
            try:
                status = work(Path(photos), Path(results), resume)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                status = 70
            os._exit(status)
        print(child, flush=True)


def rows(results: Path) -> list[dict[str, Any]]:
    """Return every result, each as the file has it; a damaged line or file is an error."""
    if results.suffix == ".jsonl":
        return [{"id": line["id"], **line["result"]} for line in map(json.loads, results.read_text().splitlines())]
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(results).to_pylist()
    return found


def ordeal(
    starter: Starter, photos: Path, results: Path, kills: int, seed: int, how: int = signal.SIGKILL
) -> Counter[str]:
    """Kill and resume a run until it was killed often enough, let it finish, and count how the workers ended."""
    moment = random.Random(seed)
    ends = Counter[str]()
    checkpoint = results.with_name(results.name + ".checkpoint") / "journal.jsonl"
    while ends["killed"] < kills:
        began = checkpoint.read_text().count('"began"') if checkpoint.exists() else 0
        worker = starter.start(photos, results, resume=began > 0)
        give_up_at = time.monotonic() + 30
        while time.monotonic() < give_up_at:  # until it has begun, or ended
            if (checkpoint.exists() and checkpoint.read_text().count('"began"') > began) or _has_ended(worker):
                break
            time.sleep(0.002)
        time.sleep(moment.uniform(0.0, 0.08))
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, how)
        status = starter.wait()
        ends["killed" if status in (-how, EXIT_INTERRUPTED) else f"exit {status}"] += 1
        if status == EXIT_DONE:
            break
    starter.start(photos, results, resume=checkpoint.exists())
    ends[f"last {starter.wait()}"] += 1
    return ends


def _has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def outcome(results: Path) -> tuple[list[dict[str, Any]], set[str]]:
    """Return every result sorted by item, and the items that the journal says were rejected."""
    journal = results.with_name(results.name + ".checkpoint") / "journal.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    rejected = [record["done"] for record in records if record.get("as") == "rejected"]
    assert len(rejected) == len(set(rejected))
    return sorted(rows(results), key=lambda row: row["id"]), set(rejected)


@pytest.fixture(scope="module")
def starter() -> Any:
    """A starter for all tests."""
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small JPEGs."""
    folder = tmp_path_factory.mktemp("photos") / "photos"
    make_photos(folder)
    return folder


@pytest.fixture(scope="module")
def expected(starter: Starter, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an uninterrupted run comes to."""
    results = tmp_path_factory.mktemp("whole") / "whole.jsonl"
    starter.start(photos, results, resume=False)
    assert starter.wait() == EXIT_DONE
    delivered, rejected = outcome(results)
    assert len(delivered) + len(rejected) == PHOTOS
    assert delivered
    assert rejected
    return delivered, rejected


@pytest.mark.parametrize("name", ["out.jsonl", "out"])
def test_every_item_once_under_sigkill(
    starter: Starter, photos: Path, expected: Any, tmp_path: Path, name: str
) -> None:
    """Killed at random moments and resumed, a run comes to exactly what an uninterrupted one comes to."""
    ends = ordeal(starter, photos, tmp_path / name, kills=12, seed=5)
    assert ends == {"killed": 12, "last 0": 1}
    assert outcome(tmp_path / name) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["out.jsonl", "out"])
def test_every_item_once_under_hundreds_of_kills(
    starter: Starter, tmp_path: Path, expected: Any, photos: Path, name: str
) -> None:
    """The same with many more kills."""
    for number in range(10):
        results = tmp_path / str(number) / name
        ordeal(starter, photos, results, kills=25, seed=number)
        assert outcome(results) == expected


def test_every_item_once_under_sigterm(starter: Starter, photos: Path, expected: Any, tmp_path: Path) -> None:
    """Asked to stop at random moments, as when a spot machine is taken away, it ends cleanly and goes on likewise."""
    ends = ordeal(starter, photos, tmp_path / "out.jsonl", kills=5, seed=9, how=signal.SIGTERM)
    assert ends == {"killed": 5, "last 0": 1}
    assert outcome(tmp_path / "out.jsonl") == expected


def main() -> None:
    """Run a starter, or the whole ordeal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--starter", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.starter:
        serve()
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Starter()) as starter:
        make_photos(Path(folder, "photos"))
        for name in ("out.jsonl", "out"):
            ends = ordeal(starter, Path(folder, "photos"), Path(folder, name), args.kills, args.seed)
            delivered, rejected = outcome(Path(folder, name))
            ids = Counter(row["id"] for row in delivered)
            print(name, dict(ends), f"{len(ids)} delivered, {ids.total() - len(ids)} twice, {len(rejected)} rejected")


if __name__ == "__main__":
    main()
