"""`headrace compare` as a command: what it takes, what it refuses, its exit statuses and its document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cli import COMMANDS, main, pipeline_arguments
from headrace.cli.compare import exit_status
from headrace.cli.compare import share as read_share
from headrace.runs.formats.comparison import ComparisonDocument

MODULE = """
import headrace as hr

def refuse(value):
    raise ValueError("no")

def pipeline_of(*stages, source=None):
    return hr.Pipeline(source or hr.folder("files", patterns=["*.bin"]), stages=[hr.fetch("fetch"), *stages])

pipeline = pipeline_of(hr.emulated("work", seconds=0.001))
slower = pipeline_of(hr.emulated("work", seconds=0.004))
failing = pipeline_of(hr.stage("work", refuse))
queued = pipeline_of(hr.stage("size", len), source=hr.queue("sqlite:///jobs.db"))
"""

FAST = ["--blocks", "6", "--items", "24"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the working folder: pipelines in `speeds.py` over a few files, and two Plans."""
    (tmp_path / "speeds.py").write_text(MODULE)
    (tmp_path / "files").mkdir()
    for number in range(5):
        (tmp_path / "files" / f"{number}.bin").write_bytes(b"x" * number)
    (tmp_path / "one.toml").write_text("[stages.work]\nworkers = 1\n")
    (tmp_path / "eight.toml").write_text("[stages.work]\nworkers = 8\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "speeds", raising=False)
    monkeypatch.setitem(COMMANDS, "compare", "say whether B is really faster than A")
    return tmp_path


def read(text: str | bytes) -> ComparisonDocument:
    """Return the document, strictly."""
    return msgspec.json.decode(text, type=ComparisonDocument)


@pytest.mark.measures
def test_two_plans_of_one_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight workers for one are better, and the document on stdout holds a value for each block of each side."""
    arguments = ["compare", "one.toml", "eight.toml", "--pipeline", "speeds:slower", "--json", *FAST]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    document = read(out)
    assert (document.verdict, document.paired, document.num_pairs) == ("better", True, 6)
    assert (len(document.a.values), len(document.b.values)) == (6, 6)
    assert document.a.plan["stages"]["work"]["workers"] == 1
    assert document.environment["order"] == "ABBABAABBAAB"
    assert document.environment["items_per_block"] == 24
    assert {"fetch", "work", "deliver"} == set(document.b.stages)
    assert "deliveries are dropped" in err
    assert "pair 6" in err


@pytest.mark.measures
def test_a_loss_beyond_the_budget_is_status_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage four times as slow breaks a budget of 3 %; the document is written as well."""
    assert main(["compare", "speeds:pipeline", "speeds:slower", "--budget", "3%", "-o", "out.json", *FAST]) == 1
    out = capsys.readouterr().out
    assert "B is worse" in out
    assert "beyond the budget of 3.0%" in out
    document = read((folder / "out.json").read_bytes())
    assert (document.is_regression, document.budget_met, document.budget) == (True, False, 0.03)


@pytest.mark.measures
def test_a_pipeline_with_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """`MODULE:ATTRIBUTE@PLAN.toml` runs the pipeline under that Plan, and --metric latency turns the direction."""
    arguments = [
        "compare",
        "speeds:slower@one.toml",
        "speeds:slower@eight.toml",
        "--metric",
        "latency",
        "--json",
        *FAST,
    ]
    assert main(arguments) == 0
    document = read(capsys.readouterr().out)
    assert (document.metric, document.higher_is_better, document.verdict) == ("latency_p50", False, "better")
    assert document.ratio is not None
    assert document.ratio < 1


@pytest.mark.measures
def test_too_few_pairs_cannot_tell(capsys: pytest.CaptureFixture[str]) -> None:
    """Two pairs have no interval: with a budget that is status 4, and the number that is missing is named."""
    arguments = ["compare", "speeds:pipeline", "speeds:slower", "--budget", "3%", "--blocks", "2", "--items", "24"]
    assert main(arguments) == 4
    assert "about 4 more pairs would tell (--blocks 6" in capsys.readouterr().out


@pytest.mark.measures
@pytest.mark.slow
def test_until_sure_stops_once_it_is_decided(capsys: pytest.CaptureFixture[str]) -> None:
    """A difference of four times needs no second look after eight pairs."""
    arguments = [
        "compare",
        "speeds:pipeline",
        "speeds:slower",
        "--until-sure",
        "--blocks",
        "8",
        "--items",
        "24",
        "--json",
    ]
    assert main(arguments) == 0
    document = read(capsys.readouterr().out)
    assert (document.verdict, document.num_pairs) == ("worse", 8)
    assert document.environment["confidence"] == pytest.approx(0.975)


@pytest.mark.measures
def test_run_folders_are_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    """With --measure the recorded pipelines and Plans are run in pairs; without it runs that are too short are refused."""
    assert main(["run", "speeds:slower", "--plan", "one.toml", "-o", "a"]) == 0
    assert main(["run", "speeds:slower", "--plan", "eight.toml", "-o", "b"]) == 0
    capsys.readouterr()
    assert main(["compare", "a", "b", "--measure", "--json", *FAST]) == 0
    document = read(capsys.readouterr().out)
    assert (document.verdict, document.paired) == ("better", True)
    assert document.a.plan["stages"]["work"]["workers"] == 1
    assert main(["compare", "a", "b"]) == 2
    assert "--measure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["one.toml", "eight.toml"], 2, "--pipeline MODULE:ATTRIBUTE"),
        (["nowhere", "speeds:pipeline"], 2, "'nowhere' is no run folder here"),
        (["files", "speeds:pipeline"], 2, "has no run.json"),
        (["speeds:pipeline", "speeds:slower", "--pipeline", "speeds:slower"], 2, "both name their pipelines"),
        (["speeds:pipeline", "speeds:nothing"], 2, "no attribute 'nothing'"),
        (["speeds:pipeline", "speeds:pipeline@"], 2, "names no Plan after @"),
        (["speeds:pipeline", "speeds:pipeline@none.toml"], 2, "none.toml cannot be read"),
        (["speeds:queued", "speeds:pipeline"], 2, "--source"),
        (["speeds:pipeline", "speeds:slower", "--source", "sqlite:///jobs.db"], 2, "there is no queue to drain"),
        (["speeds:pipeline", "speeds:slower", "--blocks", "0"], 2, "--blocks"),
        (["speeds:pipeline", "speeds:slower", "--items", "5"], 2, "--items"),
        (["speeds:pipeline", "speeds:slower", "--time-limit", "5s"], 2, "--until-sure"),
        (["speeds:pipeline", "speeds:slower", "--budget", "1%", "--margin", "5%"], 2, "--margin"),
        (["speeds:pipeline", "speeds:slower", "-o", "missing/out.json"], 2, "a folder that exists"),
        (["speeds:pipeline", "speeds:slower", "-o", "one.toml"], 2, "--force"),
        (["speeds:pipeline", "speeds:failing", *FAST], 3, "speeds:failing: 0 of 24 jobs gave a result and 24 failed"),
    ],
)
def test_misuse(arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be compared is told with what to do instead, before minutes are spent."""
    assert main(["compare", *arguments]) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["a"], ["a", "b", "c"], ["a", "b", "--budget", "103%"], ["a", "b", "--seconds", "x"]]
)
def test_malformed_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Malformed arguments end with status 2, as everywhere."""
    with pytest.raises(SystemExit) as end:
        main(["compare", *arguments])
    assert end.value.code == 2
    assert "error" in capsys.readouterr().err


def test_help_shows_percent_signs(capsys: pytest.CaptureFixture[str]) -> None:
    """The help holds percent signs, which argparse would otherwise take for placeholders."""
    with pytest.raises(SystemExit) as end:
        main(["compare", "--help"])
    assert end.value.code == 0
    assert "such as 3%" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("2 %", 0.02), ("0.02", 0.02), ("0", 0.0), ("2.5%", 0.025)])
def test_shares(text: str, share: float) -> None:
    """A share is written with a percent sign or as a fraction."""
    assert read_share(text) == pytest.approx(share)


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("0.5", 0.5), ("300ms", 0.3), ("10min", 600.0)])
def test_durations(text: str, seconds: float) -> None:
    """A time is written with a unit, or in seconds."""
    assert pipeline_arguments.seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0),
        ({"verdict": "worse"}, 0),
        ({"verdict": "underpowered"}, 0),
        ({"verdict": "worse", "budget": 0.03, "budget_met": False, "is_regression": True}, 1),
        ({"verdict": "worse", "budget": 0.03, "budget_met": None}, 4),
        ({"verdict": "underpowered", "budget": 0.03, "budget_met": None}, 4),
        ({"verdict": "underpowered", "budget": 0.03, "budget_met": True}, 0),
        ({"verdict": "worse", "budget": 0.03, "budget_met": False, "is_regression": True, "interrupted": True}, 130),
    ],
)
def test_status(changes: dict[str, Any], status: int) -> None:
    """A negative answer is given only to a budget, and only when it is sure; an open one is inconclusive."""
    side = {"name": "a", "pipeline": "p", "plan_id": "i"}
    plain: dict[str, Any] = {
        "a": side,
        "b": side,
        "metric": "throughput",
        "unit": "items/s",
        "higher_is_better": True,
        "paired": True,
        "num_pairs": 8,
        "ratio": 1.0,
        "ratio_low": 0.9,
        "ratio_high": 1.1,
        "margin": 0.02,
        "budget": None,
        "verdict": "no_difference",
        "is_regression": False,
        "pairs_needed": None,
    }
    assert exit_status(msgspec.convert(plain | changes, ComparisonDocument)) == status
