"""The tasks of an array job: every item once, into results of each one's own, also after a kill."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.base.errors import RunFolderError
from headrace.cli import main
from headrace.runs.reader import read_run

JOBS = '''"""Counts the bytes of files."""
import headrace as hr


def work(path):
    if path.read_bytes() == b"bad":
        raise hr.ItemRejected("bad.photo: no photo")
    return len(path.read_bytes())


pipeline = hr.Pipeline(hr.folder("photos"), stages=[hr.stage("work", work)], delivery=hr.jsonl("own.jsonl"))
events = hr.Pipeline(
    hr.folder("photos"), stages=[hr.stage("work", work)], delivery=hr.only(hr.only(hr.jsonl("own.jsonl"), bool), bool)
)
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
    with pytest.raises(RunFolderError, match="name it: runs/all/shard-0-of-3, runs/all/shard-1-of-3"):
        read_run("runs/all")
    found = [ids(f"out/results-{index}-of-3.jsonl") for index in range(3)]
    assert sorted(item for portion in found for item in portion) == NAMES
    assert all(found)
    assert "--shard" in json.loads(Path("runs/all/shard-1-of-3/run.json").read_text())["options"]


def test_portions_are_diagnosed_together(capsys: pytest.CaptureFixture[str]) -> None:
    """Profiled or not: all are shown, and it is said what is missing to tell what limits them; without -o it is refused."""
    for index in range(2):
        assert run(f"{index}/2", "--results", "out/a.jsonl", "-o", "runs/a") == 0
        assert run(f"{index}/2", "--results", "out/b.jsonl", "-o", "runs/b", "--profile") == 0
    capsys.readouterr()
    found = {}
    for name in "ab":
        assert main(["diagnose", f"runs/{name}", "--json"]) in (0, 4)  # short runs decide nothing
        found[name] = json.loads(capsys.readouterr().out)
        assert [one["name"] for one in found[name]["members"]] == ["shard-0-of-2", "shard-1-of-2"]
        assert found[name]["delivered"] == len(NAMES)
    assert found["a"]["notes"][0].startswith("none of them was profiled")
    assert not any("was profiled" in note for note in found["b"]["notes"])
    assert all(one["verdict"] for one in found["b"]["members"])
    assert run("0/2", "--results", "out/c.jsonl", "--profile") == 2
    assert "--profile needs a run folder" in capsys.readouterr().err


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
        (["events"], "one place for the results of all portions (JsonLines)"),
        (["called", "--results", "r.jsonl"], "workers of a queue share it by themselves"),
        (["pipeline", "--results", "r.jsonl", "--supervise", "2"], "leave it or --shard out"),
    ],
    ids=["one place for all", "one behind a condition", "a queue", "supervised"],
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


def test_results_are_gathered_once_all_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing or unfinished is named with the command that does it."""
    words = ["--results", "out/results.jsonl"]
    assert main(["gather", "out/results.jsonl"]) == 2
    assert run("0/2", *words, "--limit", "3") == 0
    assert main(["gather", "out/results.jsonl"]) == 2
    assert "--shard 1/2" in capsys.readouterr().err
    assert run("1/2", *words) == 0
    assert main(["gather", "out/results.jsonl"]) == 1
    assert "portion 0/2 has at least" in capsys.readouterr().out
    assert not Path("out/results.jsonl").exists()
    assert run("0/2", *words, "--resume") == 0
    assert main(["gather", "out/results.jsonl", "--check"]) == 0
    assert not Path("out/results.jsonl").exists()
    capsys.readouterr()
    assert main(["gather", "out/results.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["delivered"], found["left"], found["doubled"], len(found["portions"])) == (60, 0, [], 2)
    assert sorted(ids("out/results.jsonl")) == NAMES
    assert main(["gather", "out/results.jsonl"]) == 2  # it is there already


@pytest.mark.parametrize("address", ["s3://bucket/scores", "sqlite:///all.db?table=results"])
def test_an_address_is_not_gathered(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named as it was given, and not as the path of a file."""
    assert main(["gather", address]) == 2
    assert f"and {address} is an address" in " ".join(capsys.readouterr().err.split())


def test_what_was_turned_away_is_done_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Its portion is not to be run for ever."""
    Path("photos/bad.jpg").write_bytes(b"bad")
    for index in range(2):
        assert run(f"{index}/2", "--results", "r.jsonl") == 0
    assert main(["gather", "r.jsonl"]) == 0
    assert "2 portions: 60 delivered, 1 rejected" in capsys.readouterr().out


def test_folders_of_parquet_become_one() -> None:
    """By links: nothing is copied."""
    for index in range(2):
        assert run(f"{index}/2", "--results", "parts") == 0
    assert main(["gather", "parts"]) == 0
    assert sorted(pq.read_table("parts").column("id").to_pylist()) == NAMES
    assert all(path.stat().st_nlink == 2 for path in Path("parts").iterdir())


def test_results_of_two_divisions_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    """N was changed in between."""
    assert run("0/1", "--results", "r.jsonl") == 0
    assert run("0/2", "--results", "r.jsonl") == 0
    assert main(["gather", "r.jsonl"]) == 2
    assert "1 and of 2 portions" in " ".join(capsys.readouterr().err.split())


def test_items_in_two_portions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """As where the file of another was copied."""
    for index in range(2):
        assert run(f"{index}/2", "--results", "r.jsonl") == 0
    twice = Path("r-0-of-2.jsonl").read_bytes().splitlines(keepends=True)[0]
    with Path("r-1-of-2.jsonl").open("ab") as file:
        file.write(twice)
    assert main(["gather", "r.jsonl"]) == 1
    assert f"such as {json.loads(twice)['id']}" in " ".join(capsys.readouterr().out.split())
    assert not Path("r.jsonl").exists()


@pytest.mark.parametrize("results", ["all.jsonl", "all"])
def test_a_portion_that_ran_twice_is_not_gathered_twice(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A scheduler may begin a task again that had finished: its results are there twice then, and nothing is written."""
    for shard in ("0/2", "1/2", "1/2"):
        assert run(shard, "--results", results) == 0
    capsys.readouterr()
    assert main(["gather", results, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["begun_again"] == ["1/2"]
    assert not Path(results).exists()
    assert main(["gather", results]) == 1
    assert "portion 1/2 was begun again without --resume" in capsys.readouterr().out


@pytest.mark.parametrize("name", [".", "/", "", ".."])
def test_results_without_a_name_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not by an error of ours."""
    assert main(["gather", name]) == 2
    assert name == "" or run("0/2", "--results", name) == 2
    assert "need a name of their own" in capsys.readouterr().err


def test_a_portion_without_items_is_done() -> None:
    """Five files in twelve portions."""
    for name in NAMES[5:]:
        (Path("photos") / name).unlink()
    for index in range(12):
        assert run(f"{index}/12", "--results", "r.jsonl") == 0
    assert len(list(Path().glob("r-*.jsonl"))) <= 5
    assert main(["gather", "r.jsonl"]) == 0
    assert sorted(ids("r.jsonl")) == NAMES[:5]


def test_a_source_that_changes_between_portions_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What came after the first portion had ended is named as missing, until that portion has looked again."""
    words = ["--results", "out/results.jsonl"]
    assert run("0/2", *words) == 0
    for number in range(20):
        Path("photos", f"later{number}.jpg").write_bytes(b"x")
    assert run("1/2", *words) == 0
    capsys.readouterr()
    assert main(["gather", "out/results.jsonl", "--check"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "the source changed between the portions: " in said
    assert "what came later may be missing: --resume --shard 0/2 does what is new there" in said
    assert run("0/2", *words, "--resume") == 0
    capsys.readouterr()
    assert main(["gather", "out/results.jsonl"]) == 0
    assert "changed" not in capsys.readouterr().err
    assert sum(name.startswith("later") for name in ids("out/results.jsonl")) == 20


def test_portions_of_another_source_are_not_put_together(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a folder of another name, unless somebody says that one is meant."""
    words = ["--results", "out/results.jsonl"]
    assert run("0/2", *words) == 0
    Path("others").mkdir()
    Path("others", "a.jpg").write_bytes(b"x")
    assert run("1/2", *words, "--source", "others") == 0
    capsys.readouterr()
    assert main(["gather", "out/results.jsonl", "--check"]) == 1
    assert main(["gather", "out/results.jsonl"]) == 1
    assert not Path("out/results.jsonl").exists()
    said = capsys.readouterr()
    assert "the portions are of 2 sources: the folder " in " ".join(said.err.split())
    assert "--force does it" in " ".join(said.out.split())
    assert main(["gather", "out/results.jsonl", "--force"]) == 0
    assert Path("out/results.jsonl").exists()
