"""A diagnosis as text: what stands where."""

from __future__ import annotations

import msgspec
import pytest

from headrace.cli.diagnosis_text import as_text
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
    assert document.first.title == "DOWNLOAD_LATENCY (tail) in fetch"


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


def test_nothing_is_said_to_be_sure_of_a_run_that_is_not_trusted(document: DiagnosisDocument) -> None:
    """UNTRUSTED stands without a confidence: one is a matter of verdicts."""
    first = msgspec.structs.replace(document.first, verdict=VerdictClass.UNTRUSTED)
    assert "confidence" not in as_text(msgspec.structs.replace(document, first=first))


def test_neighbours_come_with_what_can_be_done_in_the_pipeline(document: DiagnosisDocument) -> None:
    """Other programs limit: the best remedy of the runner-up stands before it, with its gain and command."""
    neighbours = msgspec.structs.replace(document.first, verdict=VerdictClass.NEIGHBOUR, stage=None, remedies=())
    small = Remedy(says="rent more", ratio=Estimate(3.0, 3.1, 3.2), command="headrace whatif RUN --cores 8")
    second = msgspec.structs.replace(document.first, remedies=(small, *document.first.remedies))
    text = as_text(msgspec.structs.replace(document, first=neighbours, runner_up=second))
    head, _, rest = text.partition("If they cannot be stopped, in the pipeline itself:")
    assert rest.lstrip().startswith("- hedge: x1.50 (1.40 to 1.60)")
    assert rest.index("headrace whatif RUN --speedup fetch=2") < rest.index("Runner-up")
    assert "rent more" not in head + rest


@pytest.mark.parametrize(("source", "how"), [("", "by the time that was seen to be lost"), ("Coz", "by simulation")])
def test_a_runner_up_says_where_its_gain_is_from(document: DiagnosisDocument, source: str, how: str) -> None:
    """A gain from measured time is not called a simulated one."""
    line = msgspec.structs.replace(evidence("gain", True), source=source)
    second = msgspec.structs.replace(document.first, evidence=(line,))
    assert f"x1.20 {how}" in " ".join(as_text(msgspec.structs.replace(document, runner_up=second)).split())


def test_neighbours_without_other_advice_name_the_stage_that_gains_most(document: DiagnosisDocument) -> None:
    """No runner-up has anything to offer: the best stage of the simulation is what is in the user's hands."""
    first = msgspec.structs.replace(document.first, verdict=VerdictClass.NEIGHBOUR, stage=None, remedies=())
    text = as_text(msgspec.structs.replace(document, first=first))
    assert "in the pipeline itself:\n  - fetch 20 % faster: x1.20" in text
