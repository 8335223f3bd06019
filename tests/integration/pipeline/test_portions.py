"""The tasks of an array job: every item once, into results of each one's own, also after a kill."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from headrace.cli import main

JOBS = '''"""Counts the bytes of files."""
import headrace as hr


def work(path):
    return len(path.read_bytes())


pipeline = hr.Pipeline(hr.folder("photos"), stages=[hr.stage("work", work)], delivery=hr.jsonl("own.jsonl"))
called = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=[hr.stage("work", work)], delivery=hr.jsonl("own.jsonl"))
'''
NAMES = [f"{number:03}.jpg" for number in range(60)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the program and its files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "shard_jobs", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("shard_jobs.py").write_text(JOBS)
    Path("photos").mkdir()
    for number, name in enumerate(NAMES):
        (Path("photos") / name).write_bytes(b"x" * number)
    return tmp_path


def run(shard: str, *more: str) -> int:
    """Do one portion, as a process of its own would."""
    sys.modules.pop("shard_jobs", None)
    return main(["run", "shard_jobs.py:pipeline", "--shard", shard, *more])


def ids(file: str) -> list[str]:
    """Return the ids of a file of results."""
    return [json.loads(line)["id"] for line in Path(file).read_text().splitlines()]


def test_all_portions_together_do_every_item_once() -> None:
    """Each with a file, a checkpoint and a run folder of its own."""
    for index in range(3):
        assert run(f"{index}/3", "--results", "out/results.jsonl", "-o", "runs/all") == 0
    assert sorted(path.name for path in Path("runs/all").iterdir()) == [f"shard-{index}-of-3" for index in range(3)]
    found = [ids(f"out/results-{index}-of-3.jsonl") for index in range(3)]
    assert sorted(item for portion in found for item in portion) == NAMES
    assert all(found)
    assert "--shard" in json.loads(Path("runs/all/shard-1-of-3/run.json").read_text())["options"]


def test_a_portion_is_resumed_as_a_whole_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The others are none of its business."""
    assert run("0/2", "--results", "r.jsonl", "--limit", "10") == 0
    assert run("1/2", "--results", "r.jsonl") == 0
    assert run("0/2", "--results", "r.jsonl", "--resume") == 0
    assert "10 of" in capsys.readouterr().out
    assert sorted(ids("r-0-of-2.jsonl") + ids("r-1-of-2.jsonl")) == NAMES


@pytest.mark.full
def test_portions_write_one_table_and_resume_beside_one_another() -> None:
    """Rows of the others do not count as done, and are no sign of another source."""
    table = "sqlite:///all.db?table=results"
    for index in range(2):
        assert run(f"{index}/3", "--results", table, "--limit", "5") == 0
    assert run("2/3", "--results", table, "--limit", "1") == 0
    for index in range(3):
        assert run(f"{index}/3", "--results", table, "--resume") == 0
    with contextlib.closing(sqlite3.connect("all.db")) as database:
        assert sorted(row[0] for row in database.execute("select id from results")) == NAMES


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pipeline"], "say --results results.jsonl"),
        (["called", "--results", "r.jsonl"], "workers of a queue share it by themselves"),
        (["pipeline", "--results", "r.jsonl", "--supervise", "2"], "leave it or --shard out"),
    ],
    ids=["one place for all", "a queue", "supervised"],
)
def test_what_cannot_be_divided_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is done."""
    pipeline, *more = words
    assert main(["run", f"shard_jobs.py:{pipeline}", "--shard", "0/2", *more]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_portion_beyond_the_last_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Some count tasks from 1."""
    with pytest.raises(SystemExit, match="2"):
        run("2/2", "--results", "r.jsonl")
    assert "the last of 2 is 1/2" in " ".join(capsys.readouterr().err.split())
