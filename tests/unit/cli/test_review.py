"""`headrace review` and `--review`: what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.monitor.review.reviewing import Review
from headrace.runs.formats.review import VerdictLine
from tests.unit.monitor.review.folders import make_folder

_JOBS = """
import headrace as hr
names = hr.stage("name", lambda number: {"label": "odd" if number % 2 else "even"})
pipeline = hr.Pipeline(hr.items([1, 2, 3]), stages=[names])
"""


def test_a_run_is_reviewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the run keeps, the estimate speaks of."""
    monkeypatch.chdir(tmp_path)
    Path("reviewed.py").write_text(_JOBS)
    assert main(["run", "reviewed.py:pipeline", "--review", "kept", "-q"]) == 0
    assert main(["review", "kept", "--estimate"]) == 4
    review = Review(Path("kept"))
    review.record([VerdictLine(item=item, verdict="correct") for item in review.list_open(9)])
    capsys.readouterr()
    assert main(["review", "kept", "--estimate"]) == 0
    said = capsys.readouterr().out
    assert "100.0% of 3 answers are right, by 3 reviewed ones" in said
    assert "odd" in said
    assert main(["review", "kept", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["overall"]["accuracy"]) == ("headrace.review_estimate/1", 1.0)


def test_tables_and_golden_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way prints how to go on, and overwrites nothing."""
    monkeypatch.chdir(tmp_path)
    make_folder(Path("kept"), {"cat": 5})
    assert main(["review", "kept", "--export", "items.csv"]) == 0
    assert "--import items.csv" in capsys.readouterr().err
    assert main(["review", "kept", "--export", "items.csv"]) == 2
    table = Path("items.csv")
    table.write_text(table.read_text().replace(",,,cat", ",correct,,cat"))
    assert main(["review", "kept", "--import", "items.csv"]) == 0
    assert main(["review", "kept", "--golden", "golden"]) == 0
    assert main(["review", "none"]) == 2
    assert main(["review", "kept", "--port", "70000"]) == 2
    assert "expected 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--review-blur"],
        ["--review", "kept", "--review-original", "--review-blur"],
        ["--review", "kept", "--review-bytes", "many"],
        ["--review", "kept", "--review-bytes", "10"],
        ["--review", "jobs.py"],
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Before the run begins."""
    monkeypatch.chdir(tmp_path)
    Path("reviewed.py").write_text(_JOBS)
    assert main(["run", "jobs.py:pipeline", "-q", *options]) == 2
