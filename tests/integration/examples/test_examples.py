"""The examples run as their README says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.samples.generator import make

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with `photos` in it."""
    make(tmp_path / "photos", count=12, seed=5, split="held_out")
    return tmp_path


def headrace(folder: Path, *arguments: str) -> str:
    """Run the command line in a folder and return its stdout."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from headrace.cli import main; sys.exit(main())", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(path: Path) -> list[dict[str, object]]:
    """Return the results in a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_folder_in_json_lines_out(folder: Path) -> None:
    """Each image of the folder gets one line, and most names are right."""
    headrace(folder, "run", str(EXAMPLES / "scenes_folder.py:pipeline"))
    truth = {record["file"]: record["label"] for record in lines(folder / "photos" / "labels.jsonl")}
    results = lines(folder / "scenes.jsonl")
    right = [row for row in results if row["result"] == truth[str(row["id"])]]
    assert len(results) == 12
    assert len(right) >= 10


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["scenes_folder", "tiles"])
def test_with_an_emulated_device(folder: Path, name: str) -> None:
    """An example runs without its model, and its results say so."""
    headrace(folder, "run", str(EXAMPLES / f"{name}.py:pipeline"), "--set", "model.engine=emulated")
    (results,) = folder.glob("*.jsonl")
    assert len(lines(results)) == 12
    assert "emulated" in json.dumps(lines(results))


def test_tiles_are_joined_by_image(folder: Path) -> None:
    """Each image gets one line with the votes of its four tiles."""
    headrace(folder, "run", str(EXAMPLES / "tiles.py:pipeline"), "--set", "process.batch=8")
    results = [row["result"] for row in lines(folder / "tiles.jsonl")]
    assert len(results) == 12
    assert all(result["of"] == 4 and 1 <= result["votes"] <= 4 for result in results)  # type: ignore[index]


def test_two_modules_share_a_queue(folder: Path) -> None:
    """Each job is answered by the module that its task names."""
    for task in ("scenes", "brightness"):
        headrace(folder, "submit", "sqlite:///jobs.db", "--task", task, "photos")
    headrace(folder, "run", str(EXAMPLES / "two_modules.py:pipeline"))
    kinds = [(row["task"], type(row["result"]).__name__) for row in lines(folder / "two_modules.jsonl")]
    assert sorted(kinds) == [("brightness", "float")] * 12 + [("scenes", "str")] * 12


def test_the_slow_pipeline_names_what_it_can(folder: Path) -> None:
    """The pipeline that nobody tuned runs under its own Plan, and its answers are right: it is slow, not wrong."""
    plan = str(EXAMPLES / "slow_scenes.toml")
    headrace(folder, "run", str(EXAMPLES / "slow_scenes.py:pipeline"), "--plan", plan)
    truth = {record["file"]: record["label"] for record in lines(folder / "photos" / "labels.jsonl")}
    results = lines(folder / "slow_scenes.jsonl")
    assert len(results) == 12
    assert len([row for row in results if row["result"] == truth[str(row["id"])]]) >= 8


def train(folder: Path, *arguments: str) -> list[str]:
    """Run the training and return what it said of each epoch."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_packed.py"), "data", "photos/labels.jsonl", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.full
def test_a_training_reads_shards_as_it_reads_files(tmp_path: Path) -> None:
    """It learns as much by one loader as by the other; cut off and resumed, it ends with the very model of an unbroken one."""
    torch = pytest.importorskip("torch")
    make(tmp_path / "photos", count=120, seed=5, split="train")
    headrace(tmp_path, "pack", "photos/0*", "-o", "data")
    whole = train(tmp_path, "--checkpoint", "whole.pt")
    assert len(whole) == 4
    assert all("120 images" in line for line in whole)
    for last in (whole[-1], train(tmp_path, "--files", "photos")[-1]):
        assert int(last.split()[-2].rstrip("%")) >= 45
    train(tmp_path, "--checkpoint", "cut.pt", "--steps", "11")
    rest = train(tmp_path, "--checkpoint", "cut.pt")
    assert "72 images" in rest[0]  # of the second epoch, whose first three batches came before
    models = [torch.load(tmp_path / name)["model"] for name in ("whole.pt", "cut.pt")]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
