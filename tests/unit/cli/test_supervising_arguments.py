"""What `headrace run --supervise` does not take."""

from __future__ import annotations

import pytest

from headrace.cli import main


@pytest.mark.parametrize(
    "arguments",
    [["--limit", "5"], ["--shadow", "a.onnx"], ["--ledger", "runs/ledger.sqlite"]],
    ids=lambda given: given[0],
)
def test_what_is_for_one_worker_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, before a worker is started."""
    assert main(["run", "jobs:pipeline", "--supervise", "2", *arguments]) == 2
    assert f"{arguments[0]} is for one worker" in capsys.readouterr().err
