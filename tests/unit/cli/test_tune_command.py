"""`headrace tune` as a command: what it refuses before anything runs, what it prints, and its exit statuses."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from headrace.base.plan import Plan
from headrace.cli import main
from headrace.cli.tune import _status
from headrace.cli.tuning_text import as_text
from headrace.diagnose.replay import CannotReplay
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.tuning import SweepPoint, Trial, TuningDocument
from headrace.tune import tuning

MODULE = """
import headrace as hr
from headrace.sources.finite import Entry, FiniteSource

class Numbers(FiniteSource):
    def entries(self):
        return (Entry(str(number), b"x") for number in range(40))

pipeline = hr.Pipeline(Numbers(), stages=[hr.emulated("work", seconds=0.004, kind="io")])
queued = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=[hr.stage("size", len)])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the working folder, with a pipeline that sleeps."""
    (tmp_path / "tuned_jobs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tuned_jobs", raising=False)
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    return tmp_path


def document_of(**changes: object) -> TuningDocument:
    """Return a document of a tuning that found something."""
    trial = Trial(
        name="fetch.workers 4 -> 16", settings=("stages.fetch.workers=16",), plan={}, predicted=Estimate(1.3, 1.4, 1.5),
        measured=Estimate(1.35, 1.41, 1.47), latency_p50=0.25, outcome="best", why="throughput x1.41",
    )  # fmt: skip
    sweep = (
        SweepPoint(batch=1, throughput=100.0, latency_p50=0.01, memory_bytes=0.0, source="measured"),
        SweepPoint(
            batch=2, throughput=190.0, latency_p50=0.02, memory_bytes=1e6, source="measured", is_sweet_spot=True
        ),
        SweepPoint(batch=4, throughput=None, latency_p50=None, memory_bytes=None, source="out of memory"),
    )
    document = TuningDocument(
        pipeline="a:b", headrace_version="0", objective="throughput", goals=(), base_plan={}, base_throughput=100.0,
        num_predicted=100, num_measured=1, trials=(trial,), best=trial, sweep=sweep, says=("A better Plan.",),
        verdict="better",
    )  # fmt: skip
    return msgspec.structs.replace(document, **changes)


@pytest.mark.parametrize(
    ("verdict", "interrupted", "status"),
    [
        ("better", False, 0),
        ("already at the best", False, 0),
        ("goal missed", False, 1),
        ("inconclusive", False, 4),
        ("better", True, 130),
    ],
)
def test_exit_statuses(verdict: str, interrupted: bool, status: int) -> None:
    """Found or nothing to find 0, a goal that is missed 1, not sure 4, interrupted 130."""
    assert _status(document_of(verdict=verdict, interrupted=interrupted)) == status


def test_the_text_fits_a_terminal_and_marks_the_sweet_spot() -> None:
    """Bars in proportion, the sweet spot by name, and the size that had no memory."""
    text = as_text(document_of(plan_file="plan.toml", warnings=("a long warning " * 12,)))
    assert max(map(len, text.splitlines())) <= 80
    lines = {line.split()[0]: line for line in text.splitlines() if line[:1].isdigit() and "  " in line}
    assert "sweet spot" in text
    assert "out of memory" in lines["4"]
    assert lines["2"].count("#") > 1.5 * lines["1"].count("#")
    assert "headrace compare a:b a:b@plan.toml" in text.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--slo", "fast"], "p99=200ms"),
        (["--rate", "many"], "3M/h"),
        (["-o", "missing/plan.toml"], "folder that exists"),
        (["--set", "work.workers=0"], "workers"),
        (["--plans", "99"], "1 to 10"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Misuse is status 2, with what is expected; no run folder is left."""
    assert main(["tune", "tuned_jobs:pipeline", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not (folder / "runs").exists() or not list((folder / "runs").glob("tune-*"))


def test_a_queue_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Every run needs the same items."""
    assert main(["tune", "tuned_jobs:queued"]) == 2
    assert "--source" in capsys.readouterr().err


def test_a_plan_that_is_there_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything runs."""
    (folder / "plan.toml").write_text("# mine\n")
    assert main(["tune", "tuned_jobs:pipeline"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (folder / "plan.toml").read_text() == "# mine\n"


@pytest.mark.measures
@pytest.mark.slow
def test_a_pipeline_that_waits_is_tuned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One worker that sleeps becomes several, proved, and the file says why; the ledger has the proof."""
    arguments = ["--set", "work.workers=1", "--plans", "1", "--seconds", "0.1", "--json"]
    assert main(["tune", "tuned_jobs:pipeline", *arguments]) == 0
    document = msgspec.json.decode(capsys.readouterr().out, type=TuningDocument)
    assert document.verdict == "better"
    assert document.plan_file == "plan.toml"
    assert (Plan.load("plan.toml").stages["work"].workers or 0) > 1
    assert "# was 1; without this change" in (folder / "plan.toml").read_text()
    assert document.record.num == 1


def test_a_profile_that_cannot_be_replayed_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine was too busy to tell, which is nobody's mistake: status 4 with the reason, as of `headrace whatif`."""

    def refuse(*_: object, **__: object) -> None:
        raise CannotReplay("the simulator gives 155/s and 41/s were measured")

    monkeypatch.setattr(tuning, "tune", refuse)
    assert main(["tune", "tuned_jobs:pipeline"]) == 4
    assert "155/s" in capsys.readouterr().err
