"""The benchmark of recorded trainings, the short way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]


def test_eight_loops_add_up() -> None:
    """No step differs from the sum of its phases, no stretch from the beginning of the next, and none is missing."""
    command = [sys.executable, "-m", "benchmarks.train", "--json", "--quick", "--only", "identity"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    loops = json.loads(done.stdout)["identity"]
    assert len(loops) == 8
    for loop in loops.values():
        assert loop["steps"] == loop["expected_steps"]
        assert (loop["largest_difference"], loop["largest_gap_us"], loop["unnamed"]) == (0, 0, 0)


def test_a_part_that_does_not_exist_is_refused() -> None:
    """With the names of those that do."""
    command = [sys.executable, "-m", "benchmarks.train", "--only", "identities"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert (done.returncode, "the parts are identity, cost_us" in done.stderr) == (2, True)
