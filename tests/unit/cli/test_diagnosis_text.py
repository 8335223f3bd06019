"""A diagnosis as text: what stands where."""

from __future__ import annotations

import msgspec
import pytest

from headrace.cli.diagnosis_text import as_text, name_of
from headrace.runs.formats.diagnosis import (
    Candidate,
    DiagnosisDocument,
    EvidenceLine,
    Finding,
    GoalCheck,
    Remedy,
    VerdictClass,
)
from headrace.runs.formats.profile import Estimate


def evidence(name: str, supports: bool | None) -> EvidenceLine:
    """Return a fact."""
    return EvidenceLine(name=name, says=f"{name} says so", value=1.0, threshold=None, supports=supports)


@pytest.fixture
def document() -> DiagnosisDocument:
    """A slow tail of downloads."""
    first = Finding(
        verdict=VerdictClass.DOWNLOAD_LATENCY,
        stage="fetch",
        cause="tail",
        says="a few downloads take long",
        rule="few are slow",
        confidence="high",
        gain=1.2,
        evidence=(evidence("one", True), evidence("two", False), evidence("three", None)),
        remedies=(
            Remedy(says="hedge", ratio=Estimate(1.4, 1.5, 1.6), command="headrace whatif RUN --speedup fetch=2"),
        ),
    )
    return DiagnosisDocument(
        run="r",
        headrace_version="0",
        pipeline="app:pipeline",
        plan_id="p",
        throughput=100.0,
        first=first,
        runner_up=None,
        next_bottleneck=None,
        candidates=(
            Candidate(
                name="stage:fetch", kind="stage", stage="fetch", says="fetch 20 % faster", gain=1.2, utilization=0.98
            ),
        ),
        bounds=(),
        simulated_throughput=99.0,
    )


def test_a_finding_s_name_has_class_cause_and_stage(document: DiagnosisDocument) -> None:
    """In one line, as people say it."""
    assert name_of(document.first) == "DOWNLOAD_LATENCY (tail) in fetch"


def test_evidence_stands_for_against_or_says_nothing(document: DiagnosisDocument) -> None:
    """Each fact has its side; what says nothing is not hidden."""
    lines = [line.split() for line in as_text(document).splitlines() if line.endswith("says so")]
    assert [line[0] for line in lines] == ["for", "against", "-"]


def test_a_remedy_shows_what_it_buys_and_the_command(document: DiagnosisDocument) -> None:
    """With its interval, and the command on a line of its own."""
    text = as_text(document)
    assert "hedge: x1.50 (1.40 to 1.60) of the throughput" in text
    assert "\n      headrace whatif RUN --speedup fetch=2\n" in text


def test_goals_come_before_the_verdict(document: DiagnosisDocument) -> None:
    """A goal that is missed is seen first, then why."""
    goal = GoalCheck(says="p99 <= 200 ms", is_met=False, measured=0.4, why="it is 400 ms")
    text = as_text(msgspec.structs.replace(document, goals=(goal,), good_enough=False))
    assert text.startswith("MISSED: p99 <= 200 ms: it is 400 ms\n")


def test_an_emulated_device_is_told(document: DiagnosisDocument) -> None:
    """Times that are settings are not shown as if they had been measured."""
    assert "The device was emulated" in as_text(msgspec.structs.replace(document, is_emulated=True))
