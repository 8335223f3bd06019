"""Where the jobs come from when the command line names another source, or a drain."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from headrace.base.plan import SourcePlan
from headrace.cli import main
from headrace.cli.loading import choose_source, load_pipeline
from headrace.sources.queue_source import QueueSource
from headrace.sources.sqlite_queue import SqliteQueue

JOBS = '''"""Reads messages of another producer."""
import json

import headrace as hr


def parse(body):
    return {"data": json.loads(body)["asset"].encode()}


def work(value):
    if value == b"bad":
        raise ValueError("bad")
    return len(value)


source = hr.queue("sqlite:///jobs.db", parse=parse, max_receives=1, visibility="40s")
pipeline = hr.Pipeline(source, stages=[hr.stage("work", work)], delivery=hr.jsonl("results.jsonl"))
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_jobs", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("foreign_jobs.py").write_text(JOBS)
    return tmp_path


@pytest.mark.parametrize("source", ["", "sqlite:///jobs.db", "sqlite:///other.db?visibility=50s"])
def test_the_programs_word_on_messages_holds(source: str) -> None:
    """--drain alone drains the program's queue; another queue is read by the program's `parse`, up to its `max_receives`."""
    path = "other.db" if "other" in source else "jobs.db"
    with contextlib.closing(SqliteQueue(path)) as queue:
        queue.send([b'{"asset": "good"}', b'{"asset": "bad"}'])
        assert main(["run", "foreign_jobs.py:pipeline", "--drain", *(["--source", source] if source else [])]) == 0
        assert '"result":4' in Path("results.jsonl").read_text()
        [letter] = queue.peek(5, dead=True)
        assert (letter.body, letter.receive_count) == (b'{"asset": "bad"}', 1)


@pytest.mark.parametrize(("address", "seconds"), [("sqlite:///a.db", 40.0), ("sqlite:///a.db?visibility=50s", 50.0)])
def test_the_nearer_visibility_counts(address: str, seconds: float) -> None:
    """The program's timeout holds for another queue unless that one's address says one."""
    chosen = choose_source(load_pipeline("foreign_jobs.py:pipeline").source, address, drain=False)
    assert isinstance(chosen, QueueSource)
    chosen.open(SourcePlan())
    assert chosen.visibility_seconds == seconds
    chosen.close()


def test_a_queue_that_is_not_there_is_not_drained(capsys: pytest.CaptureFixture[str]) -> None:
    """Draining a program's queue whose file does not exist is an error, and makes none."""
    assert main(["run", "foreign_jobs.py:pipeline", "--drain"]) == 2
    assert "there is no queue to drain at sqlite:///jobs.db: jobs.db does not exist" in capsys.readouterr().err
    assert not Path("jobs.db").exists()
