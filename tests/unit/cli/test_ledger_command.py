"""`headrace ledger` as a command: lists, the Plan of a prediction, and what counts as its measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.plan import Plan, StagePlan
from headrace.cli import COMMANDS, main
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.comparison import ComparisonDocument, Side
from headrace.runs.formats.ledger import LedgerDocument
from headrace.runs.formats.prediction import Change, PredictedMetric, PredictionDocument
from headrace.runs.formats.profile import Estimate

BEFORE = Plan(stages={"fetch": StagePlan(workers=4)})
AFTER = Plan(stages={"fetch": StagePlan(workers=32, queue_items=128)})
NOTHING = PredictedMetric(base=None, predicted=None, ratio=None, refused="not asked")
BASE = PredictedMetric(base=10.0, predicted=Estimate(18.0, 20.0, 22.0), ratio=Estimate(1.8, 2.0, 2.2))


def prediction(**fields: Any) -> PredictionDocument:
    """Return the prediction that 32 workers are twice as fast as 4."""
    known: dict[str, Any] = {
        "created_unix_seconds": 1.0,
        "headrace_version": "0.1.0",
        "run": "first",
        "pipeline": "jobs:pipeline",
        "plan_id": BEFORE.plan_id,
        "change": Change(settings=("fetch.workers=32",)),
        "says": "fetch.workers=32",
        "plan": AFTER.as_table(),
        "throughput": BASE,
        "latency_p50": NOTHING,
        "latency_p99": NOTHING,
        "cpu_per_item": NOTHING,
        "bound_ratio": None,
        "naive_ratio": None,
        "limit_after": "",
        "simulated_base": None,
    }
    return PredictionDocument(**{**known, **fields})


def comparison(**fields: Any) -> ComparisonDocument:
    """Return 24 pairs in which 32 workers did 1.9 times what 4 did."""
    known: dict[str, Any] = {
        "a": Side(name="first", pipeline="jobs:pipeline", plan_id=BEFORE.plan_id, plan=BEFORE.as_table()),
        "b": Side(name="changed.toml", pipeline="jobs:pipeline", plan_id=AFTER.plan_id, plan=AFTER.as_table()),
        "metric": "throughput",
        "unit": "items/s",
        "higher_is_better": True,
        "paired": True,
        "num_pairs": 24,
        "ratio": 1.9,
        "ratio_low": 1.85,
        "ratio_high": 1.95,
        "margin": 0.02,
        "budget": None,
        "verdict": "better",
        "is_regression": False,
        "pairs_needed": None,
    }
    return ComparisonDocument(**{**known, **fields})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder whose ledger holds one prediction, with a comparison beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    monkeypatch.setitem(COMMANDS, "ledger", "what was predicted and what came of it")
    with Ledger.open() as ledger:
        ledger.write_prediction(prediction())
    write(comparison())
    return tmp_path


def write(document: ComparisonDocument) -> None:
    """Write a comparison as `headrace compare -o` does."""
    Path("compare.json").write_bytes(msgspec.json.encode(document))
    # A file's time may lag some milliseconds behind the clock, and this one is written right after the prediction.
    os.utime("compare.json", (time.time() + 1, time.time() + 1))


def printed(capsys: pytest.CaptureFixture[str]) -> LedgerDocument:
    """Return the document on stdout, strictly."""
    return msgspec.json.decode(capsys.readouterr().out, type=LedgerDocument)


def test_a_comparison_is_the_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """Its ratio stands beside the prediction, with the error and whether it lies within the interval."""
    assert main(["ledger", "measured", "p1", "compare.json"]) == 0
    out = capsys.readouterr().out
    assert "measured x1.9 (1.85 to 1.95), predicted x2 (1.8 to 2.2): error +5.3 %" in out
    assert "inside the interval (24 interleaved pairs" in " ".join(out.split())
    assert "record of this tool: the only prediction measured so far: error 5.3 %" in out
    assert main(["ledger", "list"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[0], row[3:]) == ("p1", ["x2", "(1.8", "to", "2.2)", "x1.9", "+5.3", "%", "fetch.workers=32"])


def test_measuring_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """The same comparison again changes nothing; another result is refused."""
    assert main(["ledger", "measured", "p1", "compare.json"]) == 0
    assert main(["ledger", "measured", "p1", "compare.json"]) == 0
    write(comparison(ratio=2.5, ratio_high=2.6))
    assert main(["ledger", "measured", "p1", "compare.json"]) == 2
    assert "p1 was measured before: 1.9" in capsys.readouterr().err


def test_the_start_of_a_comparison_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the document says when it began, that is the moment, else when the file was written."""
    write(comparison(environment={"started_unix_seconds": 1_000.0}))
    assert main(["ledger", "measured", "p1", "compare.json"]) == 2
    assert "after this measurement began: what is known already is no prediction" in capsys.readouterr().err
    write(comparison())
    os.utime("compare.json", (2_000.0, 2_000.0))
    assert main(["ledger", "measured", "p1", "compare.json"]) == 2
    assert "after this measurement began" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"metric": "latency_p50"}, "compares latency_p50, and throughput was predicted"),
        ({"ratio_low": None, "ratio_high": None, "num_pairs": 3}, "3 pairs are too few for an interval"),
        ({"paired": False}, "name the two run folders instead"),
        ({"b": Side(name="slow.toml", pipeline="jobs:pipeline", plan_id="x",
                    plan=BEFORE.as_table())}, "slow.toml did not run with fetch.workers=32, which p1 predicts"),
        ({"a": Side(name="fast.toml", pipeline="jobs:pipeline", plan_id=AFTER.plan_id,
                    plan=AFTER.as_table())}, "fast.toml and changed.toml ran under the same Plan; p1 changes it"),
        ({"schema": "headrace.profile/1"}, "has the schema 'headrace.profile/1'"),
    ],
)  # fmt: skip
def test_a_comparison_of_something_else(capsys: pytest.CaptureFixture[str], fields: dict[str, Any], says: str) -> None:
    """It is refused with the reason, and the prediction waits for a better one."""
    write(comparison(**fields))
    assert main(["ledger", "measured", "p1", "compare.json"]) == 2
    assert says in capsys.readouterr().err
    assert main(["ledger", "list", "--json"]) == 0
    assert printed(capsys).predictions[0].measured is None


def test_doubts_are_written_down(capsys: pytest.CaptureFixture[str]) -> None:
    """Another Plan or pipeline on the side before, and an interruption, stand with the measurement."""
    other = Side(name="other", pipeline="jobs:other", plan_id="abc", plan={"stages": {"fetch": {"workers": 5}}})
    write(comparison(a=other, interrupted=True))
    assert main(["ledger", "measured", "p1", "compare.json", "--json"]) == 0
    measured = printed(capsys).predictions[0].measured
    assert measured is not None
    assert measured.how == (
        f"24 interleaved pairs; the side before ran under Plan abc, not {BEFORE.plan_id}; "
        "the side before is jobs:other, not jobs:pipeline; it was interrupted"
    )


@pytest.mark.parametrize(
    ("results", "says"),
    [
        (["nothing.json"], "expected the JSON file of `headrace compare -o FILE`, or two run folders"),
        (["compare.json", "compare.json"], "or two run folders"),
        (["."], "or two run folders"),
        ([".", "."], "run.json"),
        (["bad.json"], "is no comparison"),
    ],
)
def test_what_is_no_result(capsys: pytest.CaptureFixture[str], results: list[str], says: str) -> None:
    """Missing files, folders that are no runs, and JSON of something else."""
    Path("bad.json").write_bytes(b'{"a": "\xff"}')
    assert main(["ledger", "measured", "p1", *results]) == 2
    assert says in capsys.readouterr().err


def test_the_plan_of_a_prediction_is_toml(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show --plan` prints what `--plan FILE` of other commands reads."""
    assert main(["ledger", "show", "p1", "--plan"]) == 0
    (folder / "changed.toml").write_text(capsys.readouterr().out)
    assert Plan.load("changed.toml") == AFTER


def test_one_prediction_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    """All that was said, then how to measure it; once measured, what came of it instead."""
    assert main(["ledger", "show", "p1"]) == 0
    out = capsys.readouterr().out
    assert "predicted: 20/s, x2 (1.8 to 2.2) of the run as recorded" in out
    assert "not measured yet" in out
    assert "headrace compare RUN changed.toml --pipeline jobs:pipeline" in out
    assert main(["ledger", "measured", "1", "compare.json"]) == 0
    capsys.readouterr()
    assert main(["ledger", "show", "1"]) == 0
    out = capsys.readouterr().out
    assert "error +5.3 %" in out
    assert "prove it" not in out
    assert main(["ledger", "show", "p1", "--json"]) == 0
    document = printed(capsys).predictions[0].document
    assert document is not None
    assert document.id == "p1"


def test_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers, and the measured predictions from the worst on, of all or of one pipeline."""
    assert main(["ledger", "record"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "no prediction of this ledger has been measured yet",
        "not measured, and so not judged: 1 prediction",
    ]
    with Ledger.open() as ledger:
        other = prediction(pipeline="jobs:other", change=Change(speedups={"fetch": 2.0}), says="fetch x2")
        assert ledger.write_prediction(other) == "p2"
        ledger.write_measurement("p1", Estimate(1.9, 2.0, 2.1), "24 pairs")
        ledger.write_measurement("p2", Estimate(0.9, 1.0, 1.1), "24 pairs")
    assert main(["ledger", "record"]) == 0
    out = capsys.readouterr().out
    assert "last 2 predictions: mean error 50.0 %, largest 100.0 %" in out
    assert "not judged" not in out
    assert "measured within the predicted interval: 1 of 2" in out
    assert "faster or slower told rightly: 1 of 1 that changed by more than 5 %" in out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["p2", "p1"]
    assert main(["ledger", "record", "--pipeline", "jobs:pipeline", "--json"]) == 0
    assert printed(capsys).record.num == 1


def test_lists_of_one_pipeline_and_of_few(capsys: pytest.CaptureFixture[str]) -> None:
    """`-n` and `--pipeline` choose; nothing found is said."""
    with Ledger.open() as ledger:
        for _ in range(3):
            ledger.write_prediction(prediction())
    assert main(["ledger", "list", "-n", "2", "--json"]) == 0
    assert [entry.id for entry in printed(capsys).predictions] == ["p4", "p3"]
    assert main(["ledger", "list", "--pipeline", "jobs:none"]) == 0
    assert capsys.readouterr().out == "no prediction\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["list", "--ledger", "none.sqlite"],
            "there is no ledger none.sqlite; `headrace whatif` and `headrace optimize` make it",
        ),
        (["show", "p7"], "has no prediction p7; it holds p1 to p1"),
        (["show", "seven"], "'seven' is no id of a prediction"),
        (["show", "p1", "--plan", "--json"], "--plan prints TOML and --json JSON"),
    ],
)
def test_misuse_is_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    """Ledgers and ids that do not exist, and contradictions; looking makes no file."""
    assert main(["ledger", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not Path("none.sqlite").exists()
