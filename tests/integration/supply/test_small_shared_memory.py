"""Containers have little shared memory: a run that does not get what it needs says so, and leaves nothing there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import numpy as np
import headrace as hr

def grow(value):
    return np.full(value, 7, np.uint8)

stages = [hr.stage("grow", grow), hr.stage("count", len)]
pipeline = hr.Pipeline(hr.items([10, 20, 8_000_000, 30]), stages=stages, delivery=hr.jsonl("results.jsonl"))
"""
_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "--", "bash", "-c"]
_SCRIPT = 'set -eu; mount -t tmpfs -o size="$1" tmpfs /dev/shm; shift; "$@" || echo "exit status $?"; ls /dev/shm'


def _ran(folder: Path, size: str) -> subprocess.CompletedProcess[str]:
    """Return what a run with two processes says where all the shared memory there is has a size."""
    if shutil.which("unshare") is None:
        _missing("unshare (util-linux) is not installed")
    tried = subprocess.run([*_NAMESPACE, _SCRIPT, "bash", "1m", "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        # No package brings this, so it is skipped wherever tests run.
        pytest.skip(f"this machine does not allow namespaces for users: {tried.stderr.strip()[-200:]}")
    (folder / "jobs.py").write_text(MODULE)
    headrace = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())"]
    plan = ["--set", "grow.executor=process", "--set", "grow.workers=2", "--set", "source.max_receives=1"]
    command = [*headrace, "run", "jobs.py:pipeline", *plan]
    return subprocess.run(
        [*_NAMESPACE, _SCRIPT, "bash", size, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI must not skip")
    pytest.skip(what)


@pytest.mark.parametrize("size", ["1m", "3m"])
def test_processes_that_cannot_begin(tmp_path: Path, size: str) -> None:
    """The run ends before the first item and says what was needed, what there is and what to do, whichever side found out."""
    ended = _ran(tmp_path, size)
    assert ended.stdout.split("\n")[0] == "exit status 3"
    assert "stage grow could not " in ended.stderr
    # What is free is asked after the refusal: the other worker may have given up by then, and have freed what it had.
    assert re.search(r"1\.05 MB more of shared memory were needed, and [\d.]+ [kM]?B of [\d.]+ MB ", ended.stderr)
    assert "docker run --shm-size" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout.split() == ["exit", "status", "3"]  # and nothing is left


def test_a_value_that_finds_no_room(tmp_path: Path) -> None:
    """It fails alone, with the sizes, where it is larger than all the shared memory there is."""
    ended = _ran(tmp_path, "6m")
    assert "a value of 8000064 bytes does not fit into shared memory: 10.0 MB more of shared memory" in ended.stderr
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3
