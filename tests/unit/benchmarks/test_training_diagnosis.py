"""The benchmark of verdicts on trainings: what counts as right, and one fault that is really injected."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.train import diagnosis
from headrace.runs.formats.diagnosis import Finding, VerdictClass

pytestmark = pytest.mark.full


def finding(verdict: str, stage: str | None = None, cause: str = "") -> Finding:
    """Return what a diagnosis said."""
    return Finding(
        verdict=VerdictClass(verdict), stage=stage, cause=cause, says="", rule="", confidence="high", gain=1.2,
        evidence=(), remedies=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "said", "is_right"),
    [
        ("decode", finding("LOADING", "decode", "work"), True),
        ("decode", finding("LOADING", "augment", "work"), False),
        ("too few workers", finding("LOADING", "read", "too few workers"), True),
        ("too few workers", finding("LOADING", "read", "head of line"), False),
        ("optimizer", finding("SYNC", "after"), False),
        ("first batch", finding("HEALTHY"), True),
        ("first batch", None, False),
    ],
)
def test_class_stage_and_cause_must_fit(fault: str, said: Finding | None, is_right: bool) -> None:
    """Stage and cause count where the fault has them."""
    assert diagnosis.CASES[fault].accepts(said) is is_right


def test_a_fault_is_injected_and_named(tmp_path: Path) -> None:
    """The loop's own code, five times as long as the step; on a machine without a free core that may come first."""
    outcome, first = diagnosis._try(tmp_path / "run", diagnosis.CASES["after the update"], 5.0, 40)
    assert outcome in ("right", "machine"), first
