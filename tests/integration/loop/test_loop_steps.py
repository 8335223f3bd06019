"""Steps of a loop on real photographs: answers that stay let a Plan decode otherwise, answers that change take it back."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from headrace.base.plan import Plan
from headrace.cli import main
from headrace.cli.loop_steps import LoopSteps
from headrace.diagnose.replay import CannotReplay
from headrace.ledger.ledger import Ledger
from headrace.loop.folder import LoopFolder, plan_sha256
from headrace.loop.goals import Goals
from headrace.loop.policy import Next
from headrace.runs.formats.loop import LoopAsked, LoopStep
from headrace.runs.formats.profile import Estimate

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
    step = LoopSteps(folder, Goals(), print)(Next(kind="validate", why=""), document)
    assert step.outcome == outcome
    assert "of 40 answers changed" in step.says[0]
    assert Plan.load(folder.plan).decode.scale == scale
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        actions = [decision.action for decision in ledger.attempts.decisions()]
    assert actions == (["accept"] if outcome == "done" else ["rollback", "accept"])


@pytest.mark.parametrize(("low", "outcome", "workers"), [(1.2, "better", 4), (0.9, "not sure", 1)])
def test_a_refused_plan_is_tried_without_what_was_refused(
    low: float, outcome: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other settings cost a search: they are kept if they surely gain by themselves, and else searched for anew."""
    monkeypatch.chdir(tmp_path)
    before = '[decode]\nscale = "full"\n[stages.work]\nworkers = 1\n'
    asked = LoopAsked(pipeline="jobs:pipeline", source="", goals=(), plan_sha256=plan_sha256(before))
    folder = LoopFolder(tmp_path / "loop")
    document = folder.begin(asked, before, budget_seconds=None, ledger=str(tmp_path / "ledger.sqlite"))
    refusal = LoopStep(number=1, kind="validate", command="", began_unix_seconds=0.0, seconds=1.0, outcome="refused")
    document = msgspec.structs.replace(document, steps=(refusal,))
    folder.refused.write_text('[decode]\nscale = "auto"\n[stages.work]\nworkers = 4\n')
    compared: list[tuple[str, int | None]] = []

    def compare_sides(args: Namespace) -> SimpleNamespace:
        compared.extend((plan.decode.scale, plan.stages["work"].workers) for plan in map(Plan.load, (args.a, args.b)))
        return SimpleNamespace(ratio_low=low, ratio=1.4, ratio_high=1.6, interrupted=False, says=("B does x1.4",))

    def find_better_plan(args: Namespace) -> None:
        assert set(args.keep) == {"decode.scale", "places"}
        raise CannotReplay("too few jobs")

    monkeypatch.setattr("headrace.cli.compare.compare_sides", compare_sides)
    monkeypatch.setattr("headrace.cli.tune.find_better_plan", find_better_plan)
    step = LoopSteps(folder, Goals(), print)(Next(kind="tune", why="", keep=("decode.scale",)), document)
    assert compared == [("full", 1), ("full", 4)]
    assert (step.kind, step.outcome, step.ratio) == ("tune", outcome, Estimate(1.2, 1.4, 1.6) if workers == 4 else None)
    plan = Plan.load(folder.plan)
    assert (plan.decode.scale, plan.stages["work"].workers) == ("full", workers)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert len(ledger.attempts.decisions()) == (workers == 4)


def test_what_cannot_be_validated_in_time_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 images at 10/s, twice, take 8 s: with 7 s left the Plan that decodes otherwise does not stay."""
    monkeypatch.chdir(tmp_path)
    assert main(["samples", "make", "golden", "--count", "40"]) == 0
    asked = LoopAsked(pipeline="jobs:pipeline", source="", goals=(), golden="golden", plan_sha256=plan_sha256(FULL))
    folder = LoopFolder(tmp_path / "loop")
    document = folder.begin(asked, FULL, budget_seconds=60.0, ledger=str(tmp_path / "ledger.sqlite"))
    look = LoopStep(
        number=1, kind="diagnose", command="", began_unix_seconds=0.0, seconds=1.0, outcome="done", throughput=10.0
    )
    document = msgspec.structs.replace(document, steps=(look,))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.attempts.accept(folder.plan, SCALED, why="faster")
    step = LoopSteps(folder, Goals(), print)(Next(kind="validate", why="", seconds=7.0), document)
    assert step.outcome == "refused"
    assert "takes about 8.00 s, and the budget has 7.00 s left for it" in step.says[0]
    assert Plan.load(folder.plan).decode.scale == "full"


SLOW = """
import headrace as hr
from headrace.sources.finite import Entry, FiniteSource

class Numbers(FiniteSource):
    def entries(self):
        return (Entry(str(number), b"x") for number in range(600))

pipeline = hr.Pipeline(Numbers(), stages=[hr.emulated("work", seconds=0.05, kind="io")])
"""


def test_a_profile_that_cannot_end_in_time_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 jobs a second, 60 take 3 s: with 2 s, less the time that showed this, it is left; its block is written down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    plan = "[stages.work]\nworkers = 1\n"
    (tmp_path / "slowly.py").write_text(SLOW)
    asked = LoopAsked(pipeline="slowly.py:pipeline", source="", goals=(), plan_sha256=plan_sha256(plan))
    folder = LoopFolder(tmp_path / "loop")
    document = folder.begin(asked, plan, budget_seconds=60.0, ledger=str(tmp_path / "ledger.sqlite"))
    take = LoopSteps(folder, Goals(), print)
    step = take(Next(kind="profile", why="", seconds=2.0), document)
    assert (step.outcome, step.run_folder) == ("out of time", "")
    assert "a profile of 60 items, the fewest that tell anything, takes about 3" in step.says[0]
    assert step.block_seconds == pytest.approx(1.0, abs=0.5)
    assert not list((tmp_path / "loop" / "runs").iterdir())
    assert take(Next(kind="profile", why="", seconds=30.0), document).outcome == "done"
