"""The benchmark of recorded trainings, the short way."""

from __future__ import annotations

import importlib
import inspect
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


def test_every_part_can_be_run() -> None:
    """Each has a module with what measures it, also those that are keys of the result and named otherwise."""
    from benchmarks.train.__main__ import _USUAL, PARTS

    usual = ["identity", "cost_us", "diagnosis", "straggler", "whatif", "batch", "scaling"]
    assert list(PARTS)[:_USUAL] == usual
    for module in PARTS.values():
        parameters = inspect.signature(importlib.import_module(f"benchmarks.train.{module}").run).parameters
        assert list(parameters) == ["quick"]


def test_planted_mistakes_in_accumulating_are_named() -> None:
    """Six of six, each by its own name, and nothing in right code that looks most like a mistake."""
    from benchmarks.train.batch import name_planted
    from benchmarks.train.batch_recipes import RIGHT

    found = name_planted(RIGHT[-1:])
    assert (found["planted"], found["named"], found["missed"]) == (6, 6, {})
    assert (found["right"], found["accused"]) == (1, [])


def test_a_trial_above_its_limit_is_killed_and_counted() -> None:
    """The process that tried it goes on."""
    from benchmarks.train.batch import count_kills

    assert count_kills(1) == {"tried": 1, "killed": 1, "others": []}
