"""`headrace loop` as a command: what it refuses before anything runs, what it would do, and its exit statuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.loop import _status
from headrace.cli.loop_text import as_text
from headrace.loop.folder import read_loop
from headrace.runs.formats.loop import LoopAsked, LoopDocument, LoopStep
from headrace.runs.formats.profile import Estimate

MODULE = """
import headrace as hr
from headrace.sources.finite import Entry, FiniteSource

class Numbers(FiniteSource):
    def entries(self):
        return (Entry(str(number), b"x") for number in range(40))

pipeline = hr.Pipeline(Numbers(), stages=[hr.emulated("work", seconds=0.004, kind="io")])
none = hr.Pipeline(hr.items([]), stages=[hr.stage("size", len)])
queued = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=[hr.stage("size", len)])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the working folder, with a pipeline that sleeps."""
    (tmp_path / "looped_jobs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "looped_jobs", raising=False)
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["looped_jobs:pipeline", "--goal", "fast"], "p99=80ms"),
        (["looped_jobs:pipeline", "--goal", "cost=1/M"], "--price"),
        (["looped_jobs:pipeline", "--plan", "no.toml"], "no.toml"),
        (["looped_jobs:pipeline", "--golden", "nowhere"], "does not exist"),
        (["looped_jobs:pipeline", "--golden", "empty"], "--golden empty: empty has no file named *.jpg"),
        (["looped_jobs:pipeline", "--data", "."], "--golden"),
        (["looped_jobs:pipeline", "--least-gain", "0"], "--least-gain"),
        (["looped_jobs:queued"], "--source"),
        (["looped_jobs:nothing"], "nothing"),
        (["looped_jobs:none"], "no items"),
        (["looped_jobs:pipeline", "-o", "looped_jobs.py"], "holds no loop"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Misuse is status 2, with what is expected; no folder is left."""
    (folder / "empty").mkdir()
    assert main(["loop", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not (folder / "runs").exists()


@pytest.mark.real_clock
def test_jobs_that_fail_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where none succeeds nothing can be profiled: the loop ends, says what fails where, keeps it, and may begin again."""
    (folder / "failing_jobs.py").write_text(
        "import headrace as hr\n"
        "def fail(value):\n"
        "    raise ValueError('no such picture')\n"
        "pipeline = hr.Pipeline(hr.items(list(range(40))), stages=[hr.stage('work', fail)], delivery=hr.collect())\n"
    )
    for _ in range(2):
        assert main(["loop", "failing_jobs.py:pipeline", "-o", "failing", "--ledger", "ledger.sqlite"]) == 1
        text = " ".join(capsys.readouterr().out.split())
        assert "jobs fail" in text
        assert "no such picture (failing_jobs.py:3)" in text
        document = read_loop(folder / "failing" / "loop.json")
        assert document.stopped == "jobs fail"
        assert "failing_jobs.py:3" in document.says[0]


def test_a_dry_run_says_what_would_be_done(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With about how long it takes; it measures nothing and leaves nothing behind."""
    assert main(["loop", "looped_jobs:pipeline", "--goal", "throughput=900/s", "--budget", "5m", "--dry-run"]) == 0
    text = capsys.readouterr().out
    for part in ("first: profile", "tune", "90.0 s", "5.0 min at most", "without --golden"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    assert sorted(file.name for file in folder.iterdir() if file.name != "__pycache__") == ["looped_jobs.py"]


def document_of(**changes: object) -> LoopDocument:
    """Return a loop that went to its goal."""
    step = LoopStep(
        number=1, kind="tune", command="headrace tune a:b -o loop/plan.toml", began_unix_seconds=0.0, seconds=70.0,
        outcome="better", ratio=Estimate(3.8, 4.0, 4.2),
    )  # fmt: skip
    known: dict[str, object] = {
        "headrace_version": "0", "asked": LoopAsked(pipeline="a:b", source="", goals=("throughput=30/s",)),
        "folder": "loop", "ledger": "runs/ledger.sqlite", "budget_seconds": None, "steps": (step,), "stopped": "goal met",
        "is_met": True, "throughput_before": 10.0, "throughput_after": 40.0, "ratio": Estimate(3.8, 4.0, 4.2),
        "changed": ("work.workers=4",), "plan_file": "loop/plan.toml", "says": ("the goals are met",),
    }  # fmt: skip
    return LoopDocument(**{**known, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0),
        ({"is_met": False, "stopped": "nothing left"}, 1),
        ({"is_met": None, "stopped": "budget"}, 4),
        ({"is_met": None, "stopped": "interrupted"}, 130),
        ({"is_met": None, "stopped": "failed"}, 3),
        ({"is_met": None, "stopped": "jobs fail"}, 1),
        ({"asked": LoopAsked(pipeline="a:b", source="", goals=()), "is_met": None, "stopped": "jobs fail"}, 1),
        ({"asked": LoopAsked(pipeline="a:b", source="", goals=()), "is_met": None, "stopped": "nothing left"}, 0),
        (
            {"asked": LoopAsked(pipeline="a:b", source="", goals=()), "is_met": None, "stopped": "budget", "steps": ()},
            4,
        ),
    ],
)
def test_exit_statuses(changes: dict[str, object], status: int) -> None:
    """Met 0, missed 1, not known 4, interrupted 130; without goals it is done, if anything was."""
    assert _status(document_of(**changes)) == status


def test_the_text_says_what_was_gained_and_how_to_go_back() -> None:
    """Before and after with the interval, the changed settings, each step's command, the Plan and the rollback."""
    text = as_text(document_of())
    for part in (
        "goal throughput=30/s: met", "10/s -> 40/s", "x4 (interval 3.8 to 4.2)", "work.workers=4",
        "1: headrace tune a:b -o loop/plan.toml", "headrace ledger rollback loop/plan.toml --ledger runs/ledger.sqlite",
        "loop/before.toml", "headrace run a:b --plan loop/plan.toml",
    ):  # fmt: skip
        assert part in text
    nothing = as_text(document_of(plan_file="", changed=(), ratio=None))
    assert "nothing was changed" in nothing
    assert "rollback" not in nothing
