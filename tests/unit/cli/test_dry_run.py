"""Trying a pipeline on a few jobs without consequences."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.cli import main
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

JOBS = '''"""A pipeline that measures."""
import headrace as hr


def work(value):
    if value.startswith(b"bad"):
        raise ValueError("bad")
    return {"length": len(value)}


pipeline = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=[hr.stage("work", work)], delivery=hr.jsonl("results.jsonl"))
'''


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteQueue:
    """A queue with a good job, a bad one, a message of somebody else's and twenty more good ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "dry_jobs", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("dry_jobs.py").write_text(JOBS)
    queue = SqliteQueue("jobs.db")
    foreign = msgspec.json.encode({"asset_id": 7})
    queue.send([encode_job(b"good", id="a"), encode_job(b"bad", id="b"), foreign])
    queue.send([encode_job(b"good", id=str(number)) for number in range(20)])
    return queue


def test_each_job_says_what_would_become_of_it(queue: SqliteQueue, capsys: pytest.CaptureFixture[str]) -> None:
    """The results and reasons of three are printed, nothing is written, and the queue has everything again, at once."""
    assert main(["run", "dry_jobs:pipeline", "--dry-run", "3", "--set", "source.wait_seconds=0.1"]) == 0
    out = capsys.readouterr().out
    assert 'a: would be delivered: {"id":"a","task":"","result":{"length":4}}' in out
    assert "b: would be tried again: work: item b: ValueError: bad (dry_jobs.py:7)" in out
    assert "would be rejected: message." in out
    assert "3 tried, 1 would be delivered by JsonLines" in out
    assert not Path("results.jsonl").exists()
    state = queue.statistics()
    assert (state.visible, state.in_flight, state.delayed, state.dead) == (23, 0, 0, 0)


def test_more_than_there_are(queue: SqliteQueue, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue with fewer jobs ends it, and each is tried once."""
    arguments = ["--dry-run", "100", "--json", "--set", "source.wait_seconds=0.1"]
    assert main(["run", "dry_jobs:pipeline", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], len(document["trials"])) == ("headrace.dry-run/1", 23)
    assert queue.statistics().visible == 23


def test_of_a_folder(queue: SqliteQueue, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder's images are tried once each; where none would be delivered the exit status is 1."""
    Path("photos").mkdir()
    for number in range(2):
        Path(f"photos/{number}.jpg").write_bytes(b"bad")
    Path("dry_jobs.py").write_text(JOBS.replace('hr.stage("work"', 'hr.fetch("fetch"), hr.stage("work"'))
    arguments = ["--source", "photos", "--dry-run", "9", "--set", "source.wait_seconds=0.1"]
    assert main(["run", "dry_jobs:pipeline", *arguments]) == 1
    assert "2 tried, 0 would be delivered" in capsys.readouterr().out
    assert not Path("results.jsonl.checkpoint").exists()


def test_what_keeps_something_does_not_go_with_it(queue: SqliteQueue) -> None:
    """A run folder of a run that tried only would be mistaken for one."""
    assert main(["run", "dry_jobs:pipeline", "--dry-run", "3", "-o", "out"]) == 2


@pytest.mark.parametrize(
    ("attributes", "delivery", "expected"),
    [
        ({}, "hr.callback()", "would be rejected: deliver: item a: the job names no callback address"),
        (
            {"callback": "http://127.0.0.1:8080/x"},
            "hr.callback()",
            "would be rejected: deliver: item a: ssrf.address: http://127.0.0.1:8080/x",
        ),
        ({"callback": "ftp://example.com/x"}, "hr.callback()", "would be rejected: deliver: item a: ssrf.scheme"),
        (
            {"callback": "https://example.com/x"},
            "hr.callback(body=lambda job, result: result['no'])",
            "would be tried again: deliver: item a: KeyError: 'no'",
        ),
        (
            {"callback": "https://example.com/x"},
            "hr.callback(body=lambda job, result: object())",
            "would be rejected: deliver: item a: result.type: the result cannot be written as JSON",
        ),
        (
            {"callback": "https://example.com/x"},
            "hr.callback(body=lambda job, result: [job.id, result])",
            'a: would be delivered: ["a",{"length":4}]',
        ),
        ({}, "hr.callback(url='http://127.0.0.1:9/x')", 'would be delivered: {"id":"a"'),
    ],
    ids=["no-address", "private", "scheme", "body-raises", "body-no-json", "body", "operators-own"],
)
def test_a_callback_is_checked_without_being_posted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    attributes: dict[str, str],
    delivery: str,
    expected: str,
) -> None:
    """The job's address, the network's rules and the body are judged as a delivery would, and the body is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "dry_jobs", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("dry_jobs.py").write_text(JOBS.replace('hr.jsonl("results.jsonl")', delivery))
    SqliteQueue("jobs.db").send([encode_job(b"good", id="a", attributes=attributes)])
    status = main(["run", "dry_jobs:pipeline", "--dry-run", "1", "--set", "source.wait_seconds=0.1"])
    out = capsys.readouterr().out
    assert expected in out
    assert status == (0 if "would be delivered" in expected else 1)
