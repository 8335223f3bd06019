"""What the end of a run says of jobs that were rejected or dead-lettered."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headrace.base.records import OutcomeKind
from headrace.cli import main
from headrace.cli.supervising import as_text
from headrace.pipeline.supervisor import Supervised

PIPELINE = """
import headrace as hr
pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", drain=True), stages=[hr.fetch("fetch"), hr.stage("size", len)], delivery=hr.callback()
)
"""
CALLBACK = "http://localhost:8000/results?token=secret"


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """A working folder with jobs whose results are to go to this machine; what `headrace submit` said on stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_ALLOW", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "reasons_jobs", raising=False)
    Path("reasons_jobs.py").write_text(PIPELINE)
    Path("photos").mkdir()
    for number in range(3):
        Path(f"photos/{number}.jpg").write_bytes(b"image")
    assert main(["submit", "sqlite:///jobs.db", "photos/", "--callback", CALLBACK]) == 0
    return capsys.readouterr().err


def test_submit_says_that_a_callback_will_be_refused(submitted: str) -> None:
    """Whoever sends jobs learns at once what the worker has to be told, and nothing secret is printed."""
    assert "workers refuse the callback http://localhost:8000/results" in submitted
    assert "--allow localhost:8000" in submitted
    assert "secret" not in submitted


@pytest.mark.parametrize("callback", ["https://example.com/done", "http://8.8.8.8/done"])
def test_submit_is_silent_about_public_callbacks(
    submitted: str, callback: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A public address needs no word."""
    assert main(["submit", "sqlite:///jobs.db", "photos/", "--callback", callback]) == 0
    assert capsys.readouterr().err == ""


def test_the_end_of_a_run_says_why_and_what_to_do(submitted: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Code, count, advice, and the commands that show the dead letters and send them back; following them does it."""
    assert main(["run", "reasons_jobs.py:pipeline"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "3 ssrf.port: http://localhost:8000/results" in out
    assert "--allow localhost:8000" in out
    assert "headrace queue peek sqlite:///jobs.db --dead" in out
    assert "headrace queue redrive sqlite:///jobs.db" in out
    assert "secret" not in out
    assert main(["queue", "peek", "sqlite:///jobs.db", "--dead"]) == 0
    assert "ssrf.port" in capsys.readouterr().out


def test_the_reasons_are_data_too(submitted: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` has every code with its count and an example."""
    assert main(["run", "reasons_jobs.py:pipeline", "--json"]) == 1
    (reason,) = json.loads(capsys.readouterr().out)["reasons"]
    assert (reason["code"], reason["count"]) == ("ssrf.port", 3)
    assert reason["example"].startswith("http://localhost:8000/results")


def test_a_run_without_a_queue_names_the_log(submitted: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there are no dead letters, errors.jsonl has the reasons."""
    Path("list.txt").write_text("http://127.0.0.1:1/a.jpg\n")
    arguments = ["run", "reasons_jobs.py:pipeline", "--source", "list.txt", "--results", "results.jsonl"]
    assert main([*arguments, "-o", "out", "--force"]) == 1
    out = capsys.readouterr().out
    assert "1 ssrf.port: " in out
    assert "each has a line in out/errors.jsonl" in out
    assert "headrace queue" not in out


def test_supervised_workers_are_summed_up() -> None:
    """The reasons of all workers are one list, with the commands to go on with; without reasons there is no word of them."""
    reasons = [
        [{"code": "ssrf.port", "count": 2, "example": "a"}],
        [{"code": "http.status", "count": 4, "example": "b"}, {"code": "ssrf.port", "count": 3, "example": "c"}],
    ]
    result = Supervised(documents=[json.dumps({"reasons": rows}).encode() for rows in reasons])
    result.outcomes[OutcomeKind.REJECTED] = 9
    result.queue = "sqlite:///my jobs.db"
    lines = as_text(2, result).splitlines()
    assert lines[0].startswith("2 workers: 9 rejected; ")
    assert lines[2:4] == ["5 ssrf.port: a", "4 http.status: b"]
    assert "headrace queue peek 'sqlite:///my jobs.db' --dead" in lines[4]
    result.queue = ""
    assert as_text(2, result, "runs").splitlines()[4:] == ["each has a line in runs/worker-*/errors.jsonl"]
    assert len(as_text(2, Supervised(documents=[b'{"reasons": []}'])).splitlines()) == 1
