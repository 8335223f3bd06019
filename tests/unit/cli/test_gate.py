"""The gate: what names a side, what a verdict becomes, and that hostile names stay text."""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.cli.gate import add_arguments, parse_side, run
from headrace.cli.gate_text import as_junit, as_markdown, as_text, describe
from headrace.runs.formats.comparison import Beside, ComparisonDocument, Side
from headrace.runs.formats.gate import GateDocument, GateVerdict


def make_document(verdict: GateVerdict, **fields: Any) -> GateDocument:
    """Return a verdict from 12 pairs in which NEW was slower by 8 %."""
    known: dict[str, Any] = {
        "a": Side(name="base::jobs:pipeline", pipeline="jobs:pipeline", plan_id="p1", median=100.0, stages={"decode": 0.01}),
        "b": Side(name="new::jobs:pipeline", pipeline="jobs:pipeline", plan_id="p1", median=92.0, stages={"decode": 0.011}),
        "metric": "throughput", "unit": "items/s", "higher_is_better": True, "paired": True, "num_pairs": 12, "ratio": 0.92,
        "ratio_low": 0.90, "ratio_high": 0.94, "margin": 0.02, "budget": 0.05, "verdict": "worse", "is_regression": True,
        "pairs_needed": None, "budget_met": False, "environment": {"items_per_block": 40, "confidence": 0.975},
        "beside": (
            Beside(
                metric="cpu_per_item", unit="s/item", higher_is_better=False, ratio=1.1, ratio_low=1.05, ratio_high=1.15,
                a=0.01, b=0.011, verdict="worse",
            ),
        ),
    }  # fmt: skip
    comparison = ComparisonDocument(**{**known, **fields})
    says = describe(verdict, comparison, 0.05)
    return GateDocument(verdict=verdict, max_slowdown=0.05, seconds=31.0, says=says, comparison=comparison)


def test_a_side_names_folder_pipeline_and_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Plan of its own is looked for in the folder, one of both in the working folder."""
    (tmp_path / "base").mkdir()
    monkeypatch.chdir(tmp_path)
    side = parse_side("base::jobs.py:pipeline@fast.toml", "all.toml")
    assert (side.folder, side.target, side.plan) == (str(tmp_path / "base"), "jobs.py:pipeline", "fast.toml")
    assert parse_side("jobs:pipeline", "all.toml").plan == str(tmp_path / "all.toml")
    assert parse_side("jobs.py", None)[1:] == (str(tmp_path), "jobs.py", "")


def test_a_checkout_without_its_pipeline_is_told_how_to_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for a damaged run folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SettingsError, match="base::MODULE:ATTRIBUTE"):
        run(parser.parse_args(["base", "new"]))


@pytest.mark.parametrize("text", ["jobs", "", "::jobs:pipeline", "jobs:pipeline@", "nowhere::jobs:pipeline", "base::"])
def test_what_is_no_side_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was expected."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="expected"):
        parse_side(text, None)


def test_the_comment_has_the_verdict_the_figures_and_that_it_ran() -> None:
    """As Markdown; a green one says how much it ran, too."""
    failed = as_markdown(make_document("failed"))
    assert failed.startswith("### headrace gate: failed\n")
    assert "-8.0 % (97.5 % interval -10.0 % to -6.0 %)" in failed
    assert "| `decode`, per item | 10.0 ms | 11.0 ms |" in failed
    assert "It ran 12 pairs of blocks of 40 items in turn" in as_text(make_document("passed"))
    assert "--metric cpu" in as_text(make_document("cannot_tell"))
    by_cpu = as_text(make_document("cannot_tell", metric="cpu_per_item"))
    assert "A longer --time-limit would tell more." in by_cpu
    assert "--metric cpu" not in by_cpu


@pytest.mark.parametrize("verdict", ["passed", "failed", "cannot_tell"])
def test_junit_is_read_by_others(verdict: GateVerdict) -> None:
    """One test, which failed, was skipped or passed."""
    suite = ET.fromstring(as_junit(make_document(verdict)))
    (case,) = suite
    assert (suite.get("tests"), suite.get("failures")) == ("1", str(int(verdict == "failed")))
    assert {child.tag for child in case} - {"system-out"} == {
        "passed": set(), "failed": {"failure"}, "cannot_tell": {"skipped"},
    }[verdict]  # fmt: skip


def test_hostile_names_stay_text() -> None:
    """No name of a pipeline, a stage or a warning becomes markup of a comment or of a report."""
    hostile = "x`|<img src=x>\n\n# head\x1b[31m"
    side = Side(name=hostile, pipeline=hostile, plan_id="p", median=1.0, stages={hostile: 1.0})
    document = make_document("failed", a=side, b=side, warnings=(hostile,))
    comment = as_markdown(document)
    assert "<img" not in comment
    assert "\n# head" not in comment
    assert "\x1b" not in comment
    rows = [line for line in comment.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {5}
    ET.fromstring(as_junit(document))
