"""Commands that add runs to a history: alone, supervised, killed, and with a file that cannot be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.monitor.history.store import History

_JOBS = """
import time
import headrace as hr

def work(data):
    time.sleep(0.001)
    return len(data)

pipeline = hr.Pipeline(hr.items([bytes(1000)] * 60), stages=[hr.stage("work", work)], delivery=hr.collect())
endless = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=[hr.stage("work", work)], delivery=hr.collect())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with pipelines."""
    (tmp_path / "jobs.py").write_text(_JOBS)
    return tmp_path


def _type(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")} | variables
    return subprocess.run(
        [sys.executable, "-m", "headrace", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip


def _read(folder: Path, *command: str) -> dict[str, Any]:
    done = _type(folder, "history", *command, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.smoke
def test_a_run_adds_itself(folder: Path) -> None:
    """By the option, and by the variable; `history` lists both, and `page` draws them."""
    file = "runs/history.sqlite"
    assert _type(folder, "run", "jobs:pipeline", "--history", file).returncode == 0
    assert _type(folder, "run", "jobs:pipeline", HEADRACE_HISTORY=file).returncode == 0
    document = _read(folder)
    assert [line["delivered"] for line in document["lines"]] == [60, 60]
    (baseline,) = document["baselines"]
    assert baseline["says"] == "cannot tell yet: 2 windows, and 12 make a baseline"
    assert _type(folder, "history", "page", "-o", "page.html").returncode == 0
    assert "2 runs, 0 incidents" in (folder / "page.html").read_text()


def test_a_profile_adds_itself_with_its_bottleneck(folder: Path) -> None:
    """And `add` replaces the line."""
    done = _type(folder, "profile", "jobs:pipeline", "-o", "runs/one", "--no-overhead", "--history", "h.sqlite")
    assert done.returncode == 0, done.stderr
    (line,) = _read(folder, "--history", "h.sqlite")["lines"]
    assert line["bottleneck"]
    document = _read(folder, "add", "runs/one", "--history", "h.sqlite")
    assert [line["status"] for line in document["lines"]] == ["finished"]


def test_supervised_workers_are_one_line(folder: Path) -> None:
    """Their counts are added up."""
    assert (
        _type(
            folder, "submit", "sqlite:///jobs.db", *(f"https://example.com/{number}.jpg" for number in range(40))
        ).returncode
        == 0
    )
    done = _type(
        folder, "run", "jobs:endless", "--drain", "--supervise", "2", "--history", "h.sqlite", "-o", "supervised"
    )
    assert done.returncode == 0, done.stderr
    (line,) = _read(folder, "--history", "h.sqlite")["lines"]
    assert line["delivered"] == 40
    for _ in range(2):
        assert _type(folder, "history", "--history", "h.sqlite", "add", "supervised").returncode == 0
        (line,) = _read(folder, "--history", "h.sqlite")["lines"]
        assert line["delivered"] == 40


@pytest.mark.parametrize("named_by", ["option", "variable"])
def test_a_file_that_cannot_be_used(folder: Path, named_by: str) -> None:
    """Named by the option it is an error before the run begins; by the variable it is said, and the run is done."""
    (folder / "h.sqlite").write_bytes(b"something else" * 1000)
    if named_by == "option":
        done = _type(folder, "run", "jobs:pipeline", "--history", "h.sqlite")
        assert done.returncode == 2
    else:
        done = _type(folder, "run", "jobs:pipeline", HEADRACE_HISTORY="h.sqlite")
        assert done.returncode == 0
        assert "this run is added to no history" in done.stderr
    assert "h.sqlite is damaged or not a history" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.real_clock
def test_a_killed_run_keeps_its_windows(folder: Path) -> None:
    """After SIGKILL the windows that had ended are there, and the line says that it runs still."""
    assert (
        _type(
            folder, "submit", "sqlite:///jobs.db", *(f"https://example.com/{number}.jpg" for number in range(60))
        ).returncode
        == 0
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "headrace", "run", "jobs:endless", "--history", "h.sqlite", "--history-window", "1s"],
        cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    with History(folder / "h.sqlite") as history:
        while not history.lines() and time.monotonic() < until:
            time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    (line,) = _read(folder, "--history", "h.sqlite")["lines"]
    assert line["status"] == "running"
    assert line["ended_unix_seconds"] is None
    assert line["delivered"] > 0
