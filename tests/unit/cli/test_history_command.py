"""`headrace history` on a file: exit statuses, restarts, and ids that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.cli import main
from headrace.monitor.history.moments import make_rows, sum_rows
from headrace.monitor.history.store import History
from headrace.runs.formats.history import HistoryLine, HistoryWindow


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return a history in which the second of two stages takes half as much time again in the last six of 36 hours."""
    random, ones = np.random.default_rng(0), np.ones(100)
    windows = []
    for hour in range(36):
        costs = {"decode": 5.0, "process": 6.0 if hour < 30 else 9.0}
        windows.append(
            HistoryWindow(
                began_unix_seconds=3600.0 * hour, seconds=3600.0, delivered=100,
                stages={
                    stage: sum_rows(make_rows(ones, ones, ones, 1e6 * cost * random.lognormal(0, 0.1, 100)), ones)
                    for stage, cost in costs.items()
                },
            )
        )  # fmt: skip
    line = HistoryLine(kind="run", began_unix_seconds=1.0, key="a", pipeline="jobs:pipeline", plan_id="p", machine="m")
    path = tmp_path / "history.sqlite"
    with History(path) as history:
        history.add_line(line, windows)
    return str(path)


def test_a_nightly_job_fails_where_a_stage_is_slower(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the option alone; the text names the stage."""
    assert main(["history", "--history", file]) == 0
    assert "process is slower than in the baseline" in capsys.readouterr().out
    assert main(["history", "list", "--fail-if-slower", "--history", file]) == 1


def test_a_restart_begins_anew(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a line of its own, and what was before is compared no more."""
    assert main(["history", "restart", "jobs:pipeline", "--why", "new camera", "--history", file, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(line["kind"], line["says"]) for line in document["lines"]] == [("restart", "new camera"), ("run", "")]
    assert document["baselines"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "h9"], "has no line h9"),
        (["restart", "other:pipeline"], "has runs of: jobs:pipeline"),
        (["add", "nowhere"], "nowhere does not exist"),
    ],
)
def test_misuse_says_what_there_is(
    file: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit status 2."""
    assert main(["history", *arguments, "--history", file]) == 2
    assert says in capsys.readouterr().err
