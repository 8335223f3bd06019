"""Steps of a loop on real photographs: answers that stay let a Plan decode otherwise, answers that change take it back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.base.plan import Plan
from headrace.cli import main
from headrace.cli.loop_steps import LoopSteps
from headrace.ledger.ledger import Ledger
from headrace.loop.folder import LoopFolder, plan_sha256
from headrace.loop.goals import Goals
from headrace.loop.policy import Next
from headrace.runs.formats.loop import LoopAsked

EXAMPLES = Path(__file__).parents[3] / "examples"
FULL, SCALED = '[decode]\nscale = "full"\n', '[decode]\nscale = "auto"\n'


@pytest.mark.parametrize(("max_drop", "outcome", "scale"), [(0.2, "done", "auto"), (0.001, "refused", "full")])
def test_a_plan_that_decodes_otherwise_is_kept_if_the_answers_stay(
    max_drop: float, outcome: str, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 images that agree at most 7 % may differ with 95 % confidence: enough for a fifth, not for a thousandth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["samples", "make", "golden", "--count", "40"]) == 0
    pipeline = str(EXAMPLES / "scenes_folder.py:pipeline")
    asked = LoopAsked(
        pipeline=pipeline, source="golden", goals=(), golden="golden", max_drop=max_drop, plan_sha256=plan_sha256(FULL)
    )
    folder = LoopFolder(tmp_path / "loop")
    document = folder.begin(asked, FULL, budget_seconds=None, ledger=str(tmp_path / "ledger.sqlite"))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.attempts.accept(folder.plan, SCALED, why="faster")
    step = LoopSteps(folder, Goals(), print)(Next(kind="validate", why=""), document, None)
    assert step.outcome == outcome
    assert "of 40 answers changed" in step.says[0]
    assert Plan.load(folder.plan).decode.scale == scale
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        actions = [decision.action for decision in ledger.attempts.decisions()]
    assert actions == (["accept"] if outcome == "done" else ["rollback", "accept"])
