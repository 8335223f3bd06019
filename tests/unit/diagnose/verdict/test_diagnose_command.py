"""`headrace diagnose`: what it prints and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.runs.reader import Run


@pytest.fixture
def folder(make_run: Callable[[Any], Run], made: Any, pipe: Any) -> str:
    """A run that decoding limits at 100 jobs a second."""
    return str(make_run(pipe(stages=[made(name="decode", work="decode", cpu=0.01)], num_jobs=800)).path)


def test_the_verdict_comes_first(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line names class, stage and confidence; remedies have a command to type; lines fit a terminal."""
    assert main(["diagnose", folder]) == 0
    text = capsys.readouterr().out
    assert text.startswith("DECODE in decode   [confidence:")
    assert f"headrace whatif {folder} --set decode.workers=4" in text
    too_long = [line for line in text.splitlines() if len(line) > 80 and folder not in line]
    assert not too_long


def test_json_is_the_document(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON names its schema."""
    assert main(["diagnose", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "headrace.diagnosis/1"


def test_a_goal_that_is_met_says_so_first(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Good enough: stop here; the verdict follows."""
    assert main(["diagnose", folder, "--slo", "p50=5s", "--rate", "90/s"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Good enough: the goals given are met; stop here.")
    assert "DECODE in decode" in text


def test_a_goal_that_is_missed_is_exit_status_one(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Missed is a negative answer to what the user asked."""
    assert main(["diagnose", folder, "--rate", "500/s"]) == 1
    assert "MISSED: >= 500/s" in capsys.readouterr().out


def test_inconclusive_is_exit_status_four(
    make_run: Callable[[Any], Run], made: Any, pipe: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too few jobs: no number, the reason, and the next command."""
    run = make_run(pipe(stages=[made(name="decode", cpu=0.01)], num_jobs=15))
    assert main(["diagnose", str(run.path)]) == 4
    text = capsys.readouterr().out
    assert text.startswith("INCONCLUSIVE")
    assert "headrace profile app:pipeline" in text


@pytest.mark.parametrize("arguments", [["--slo", "fast"], ["--rate", "many"]])
def test_a_goal_that_is_none_is_misuse(folder: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message shows what was expected."""
    assert main(["diagnose", folder, *arguments]) == 2
    assert "expected" in capsys.readouterr().err


def test_no_run_folder_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without run.json is named."""
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "run.json" in capsys.readouterr().err
