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


def test_a_turn_is_found_on_the_line_of_a_step_over_its_link() -> None:
    """A step of one rank takes a second, of two 1.25 s and 30 MB over the link: as fast below 2 s, at 40 MB/s."""
    from benchmarks.train.scaling_throttled import find_turn

    rows = [
        {"bytes_per_second": rate, "one": 100.0, "two": 200.0 / (1.25 + 30e6 / rate)} for rate in (20e6, 40e6, 80e6)
    ]
    assert find_turn(rows) == pytest.approx(40e6)
    assert find_turn([{**row, "two": 50.0} for row in rows]) is None


def test_what_was_measured_of_ranks_is_told_part_by_part() -> None:
    """Parts that were not measured are left out; a link that could not be throttled is said."""
    from benchmarks.train.scaling import as_text

    row = {
        "setting": "accumulate=8", "says": "", "predicted": {"low": 1.8, "mid": 2.0, "high": 2.2}, "is_best": True,
        "measured": 2.5, "of_one_after": 1.5, "pairs": [],
    }  # fmt: skip
    ranks = {"2": {"of_one": 0.6, "losses": {}, "proposals": [row]}}
    repaired = {"rate": 8e8, "rounds": 3, "verdicts": {"2": "COMMUNICATION: exchanging"}, "ranks": ranks}
    told = as_text({"repair": repaired})
    assert "| 2 | x0.60 | COMMUNICATION | accumulate=8 | x2.00 [1.80, 2.20] | x2.50 | -20.0% | x1.50 |" in told
    assert "The link was not throttled" in as_text({"repair": None})
    turn = {"predicted": 50e6, "measured": None, "rows": []}
    assert "Predicted from one rank: 50.0 MB/s. Measured: at no rate" in as_text({"turn": turn})
