"""`--on` refuses, before anything is begun, what does not go together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.cli import main

JOBS = """import headrace as hr

stages = [hr.stage("same", lambda path: 1)]
pipeline = hr.Pipeline(hr.folder("photos"), stages=stages, delivery=hr.jsonl("own.jsonl"))
called = hr.Pipeline(hr.folder("photos"), stages=stages, delivery=hr.callback("http://localhost/x"))
queued = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=stages)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("on_ray_jobs.py").write_text(JOBS)
    Path("photos").mkdir()
    Path("there.jsonl").touch()
    Path("r-0-of-2.jsonl").touch()


RESULTS = ["--results", "r3.jsonl"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pipeline", "--workers", "2"], "say where, with --on ray"),
        (["pipeline", "--portions", "2"], "say where, with --on ray"),
        (["pipeline", "--on", "", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "rays", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "http://here:1", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "ray://", *RESULTS], "--on is ray"),
        (["pipeline", "--on", "ray://host:abc", *RESULTS], "the port is 'abc'; expected a number"),
        (["pipeline", "--on", "host:70000", *RESULTS], "the port is '70000'; expected a number"),
        (["pipeline", "--on", "ray"], "one place for the results of all workers (JsonLines)"),
        (["called", "--on", "ray"], "--checkpoint DIR"),
        (["pipeline", "--on", "ray", "--shard", "0/2", *RESULTS], "--shard is for one worker"),
        (["pipeline", "--on", "ray", "--metrics", "9000", *RESULTS], "--metrics is for one worker"),
        (["queued", "--on", "ray", "--resume"], "a queue itself keeps what is not done"),
        (["pipeline", "--on", "ray", "--results", "there.jsonl"], "is there already"),
        (["pipeline", "--on", "ray", "--results", "r.jsonl"], "go on with --resume"),
        (["pipeline", "--on", "ray", "--results", "r.jsonl", "--resume", "--portions", "3"], "those of 2 portions"),
        (["pipeline", "--on", "ray", "--results", "none.jsonl", "--resume"], "there are none"),
        (["pipeline", "--on", "ray", "--results", "s3://b/r", "--resume"], "say --portions as at the first start"),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do; no Ray is needed to say so."""
    pipeline, *more = words
    assert main(["run", f"on_ray_jobs.py:{pipeline}", *more]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As for any package that is not installed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["run", "on_ray_jobs.py:pipeline", "--on", "ray", *RESULTS]) == 3
    assert "pip install 'headrace[ray]'" in " ".join(capsys.readouterr().err.split())
