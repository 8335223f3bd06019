"""The accuracy benchmark: what counts as right, what is scored, which runs are made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from benchmarks.diagnosis_accuracy import (
    INDEX,
    NUM_HEALTHY,
    Planned,
    make_case,
    plan_runs,
    rescore,
    wanted,
)
from benchmarks.diagnosis_rows import Kept, Row, Score, as_text, diagnose, line_of, scored, summarize
from benchmarks.faults import FAULTS, SHAPES, source_faults
from benchmarks.verdicts_required import NOT_INJECTED, REQUIRED, in_first_two, is_false_alarm
from headrace.base.errors import HeadraceError
from headrace.runs.formats.diagnosis import DiagnosisDocument, Finding, VerdictClass


def finding(verdict: str, stage: str | None = None, cause: str = "") -> Finding:
    """Return a finding."""
    return Finding(
        verdict=VerdictClass(verdict), stage=stage, cause=cause, says="", rule="", confidence="high", gain=1.2,
        evidence=(), remedies=(),
    )  # fmt: skip


def document(first: Finding, second: Finding | None = None) -> DiagnosisDocument:
    """Return a diagnosis."""
    return DiagnosisDocument(
        run="r", headrace_version="0", pipeline="p", plan_id="", throughput=1.0, first=first, runner_up=second,
        next_bottleneck=None, candidates=(), bounds=(), simulated_throughput=None,
    )  # fmt: skip


def row(
    number: int, kind: str = "fault", fault: str = "F8", *, dose: float = 2, rate: float | None = 50.0, foreign: float = 0.0,
    verdict: str = "DECODE", right: bool = True, second: bool | None = None, p50: float | None = None,
    overhead: float | None = None, shape: str = "decode_heavy",
) -> Row:  # fmt: skip
    """Return a row."""
    kept = Kept(
        number=number, kind=kind, fault=fault if kind in ("fault", "fixed") else "", shape=shape, dose=dose,  # type: ignore[arg-type]
        folder=f"r{number}", seconds=4.0, foreign_cores=foreign,
    )  # fmt: skip
    return Row(
        kept=kept, verdict=verdict, right=right, right_second=right if second is None else second, throughput=rate,
        latency_p50=p50, overhead=overhead,
    )  # fmt: skip


# --- What is right ---------------------------------------------------------------------------------------------------


def test_every_fault_has_a_required_verdict_or_is_none() -> None:
    """And every class that is required exists."""
    assert set(REQUIRED) | set(NOT_INJECTED) == set(FAULTS)
    classes = {verdict.value for verdict in VerdictClass}
    assert {verdict for required in REQUIRED.values() for verdict in required.verdicts} <= classes


@pytest.mark.parametrize(
    ("fault", "said", "is_right"),
    [
        ("F8", finding("DECODE", "decode"), True),
        ("F8", finding("DECODE", "preprocess"), False),
        ("F8", finding("DECODE"), True),
        ("F8", finding("GIL", "decode"), False),
        ("F6", finding("DOWNLOAD_LATENCY", "fetch", "tail"), True),
        ("F6", finding("DOWNLOAD_LATENCY", "fetch"), False),
        ("F1", finding("HEALTHY"), True),
        ("F8", None, False),
    ],
)
def test_class_stage_and_cause_must_fit(fault: str, said: Finding | None, is_right: bool) -> None:
    """A stage counts where one is required and one is named; a cause where one is required."""
    assert REQUIRED[fault].accepts(said) is is_right


def test_the_runner_up_counts_for_the_first_two() -> None:
    """Right second is right in the first two, not first."""
    said = document(finding("GIL"), finding("DECODE", "decode"))
    assert not REQUIRED["F8"].accepts(said.first)
    assert in_first_two(REQUIRED["F8"], said)
    assert not in_first_two(REQUIRED["F9"], said)


@pytest.mark.parametrize(
    ("verdict", "device_is_fed", "is_alarm"),
    [
        ("HEALTHY", False, False), ("ARRIVAL_LIMITED", False, False), ("DECODE", False, True), ("NEIGHBOUR", False, True),
        ("INCONCLUSIVE", False, False), ("UNTRUSTED", False, False), ("DEVICE_COMPUTE", False, True),
        ("DEVICE_COMPUTE", True, False), ("LAUNCH", True, True),
    ],
)  # fmt: skip
def test_an_alarm_names_what_is_not_there(verdict: str, device_is_fed: bool, is_alarm: bool) -> None:
    """A fed device may be named where it is what holds up the run."""
    assert is_false_alarm(document(finding(verdict)), device_is_fed=device_is_fed) is is_alarm


# --- What is scored --------------------------------------------------------------------------------------------------


def test_a_cost_is_against_the_bases_before_and_after() -> None:
    """50 against the mean of 90 and 110; bases of another shape and those further away do not count."""
    rows = [
        row(0, "base", rate=10.0), row(1, "base", rate=90.0), row(2), row(3, "base", rate=110.0, shape="device_heavy"),
        row(4, "base", rate=110.0), row(5, "base", rate=10.0),
    ]  # fmt: skip
    (one,) = scored(rows)
    assert one.cost == pytest.approx(0.5)
    assert one.counts


def test_cheap_and_disturbed_runs_are_not_scored() -> None:
    """Less than a tenth, or foreign programs: neither a hit nor a miss."""
    rows = [
        row(0, "base", rate=100.0), row(1, rate=95.0, right=False), row(2, foreign=0.5, right=False), row(3),
        row(4, "healthy", verdict="DECODE", right=False, foreign=0.5), row(5, "healthy", verdict="HEALTHY"),
    ]  # fmt: skip
    result = summarize(Score(rows=tuple(rows), skipped={}))
    assert (result["n"], result["top1"]) == (1, 1.0)
    assert (result["healthy_n"], result["false_alarms"]) == (1, 0)
    assert result["too_cheap"] == ["F8@decode_heavy x2"]
    assert len(result["disturbed"]) == 2


def test_what_is_not_known_to_be_cheap_is_scored() -> None:
    """A run that could not be diagnosed, and one that the fault left no rate, are misses."""
    rows = [
        row(0, "base", rate=100.0), row(1), row(2, verdict="", right=False, rate=50.0), row(3, right=False, rate=None),
    ]  # fmt: skip
    result = summarize(Score(rows=tuple(rows), skipped={}))
    assert (result["n"], result["top1"]) == (3, pytest.approx(1 / 3))
    assert result["too_cheap"] == []


def test_latency_and_overhead_are_costs_where_they_are_what_is_lost() -> None:
    """F16 is held against its mended run, F40 against 5 % of overhead."""
    late, mended = row(0, fault="F16", p50=0.2), row(1, "fixed", "F16", p50=0.05)
    heavy, light = row(2, fault="F40", overhead=1.3), row(3, fault="F40", overhead=1.02)
    costs = [(one.cost, one.counts) for one in scored([late, mended, heavy, light])]
    assert costs == [(pytest.approx(0.75), True), (pytest.approx(0.3), True), (pytest.approx(0.02), False)]


def test_the_object_has_the_keys_and_the_confusions() -> None:
    """Shares of scored runs of twice the dose and more; 1.2 belongs to the curve."""
    rows = [
        row(0, "base", rate=100.0), row(1), row(2, "fault", "F10", verdict="DECODE", right=False, second=True),
        row(3, verdict="GIL", right=False), row(4, dose=1.2, verdict="GIL", right=False),
        row(5, "healthy", verdict="DECODE", right=False, dose=0.25),
    ]  # fmt: skip
    result = summarize(Score(rows=tuple(rows), skipped={"F18": "needs onnx"}, interrupted=True))
    assert {"n", "top1", "top2", "healthy_n", "false_alarms", "confusions"} <= set(result)
    assert (result["n"], result["top1"], result["top2"]) == (3, pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert result["confusions"] == {"F10@decode_heavy x2": "said DECODE", "F8@decode_heavy x2": "said GIL"}
    assert (result["healthy_n"], result["false_alarms"]) == (1, 1)
    assert result["detection"]["1.2"]["top1"] == 0.0
    text = as_text(json.loads(json.dumps(result)))
    assert "Interrupted" in text
    assert "F18: needs onnx" in text


def test_a_line_says_whether_it_is_right() -> None:
    """ok, 2nd, MISS, cheap, and in parentheses where it is not scored."""
    rows = [
        row(0, "base", rate=100.0), row(1), row(2, right=False, second=True), row(3, right=False),
        row(4, rate=99.0), row(5, right=False, foreign=1.0),
    ]  # fmt: skip
    marks = [line_of(one.row, one).split()[4] for one in scored(rows)]
    assert marks == ["ok", "2nd", "MISS", "cheap", "(MISS)"]


def test_a_folder_that_is_no_run_is_a_miss_with_a_reason(tmp_path: Path) -> None:
    """The benchmark goes on."""
    found = diagnose(row(0).kept, tmp_path)
    assert not found.right
    assert "r0" in found.problem


# --- Which runs ------------------------------------------------------------------------------------------------------


def test_all_runs_have_a_base_before_and_after() -> None:
    """And every fault that can be had runs twice and five times as strong, in at most two shapes."""
    runs = plan_runs(wanted(False, []))
    for index, planned in enumerate(runs):
        if planned.kind == "fault":
            assert any(one.kind == "base" and one.shape == planned.shape for one in runs[:index])
            assert any(one.kind == "base" and one.shape == planned.shape for one in runs[index:])
    assert sum(planned.kind == "healthy" for planned in runs) == NUM_HEALTHY == 149
    here = {fault.id for fault in FAULTS.values() if fault.inject is not None} - set(NOT_INJECTED)
    for dose in (2.0, 5.0):
        counts = Counter(planned.fault for planned in runs if planned.kind == "fault" and planned.dose == dose)
        assert set(counts) == here
        assert max(counts.values()) <= 2
    assert len({planned.shape for planned in runs if planned.kind == "healthy"}) == len(SHAPES)


def test_only_runs_what_was_asked_for() -> None:
    """In every shape, without healthy runs unless they are named."""
    runs = plan_runs(wanted(False, ["F10"]))
    assert {planned.fault for planned in runs} == {"", "F10"}
    assert {planned.shape for planned in runs} == set(FAULTS["F10"].applies_to)
    assert not any(planned.kind == "healthy" for planned in runs)
    assert sum(planned.kind == "healthy" for planned in plan_runs(wanted(False, ["HEALTHY"]))) == NUM_HEALTHY
    with pytest.raises(HeadraceError, match="no fault F99"):
        wanted(False, ["F99"])


def test_every_case_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the full plan; healthy ones get their share of what the base did."""
    monkeypatch.setattr(source_faults, "measure_capacity", lambda shape: 100.0)
    capacity = dict.fromkeys(SHAPES, 100.0)
    for planned in set(plan_runs(wanted(False, []))):
        case = make_case(planned, capacity)
        if planned.kind == "healthy" and planned.dose < 1:
            assert case.broker is not None
            assert case.broker.rate_per_second == pytest.approx(100 * planned.dose)
    with pytest.raises(HeadraceError, match="no base of decode_heavy"):
        make_case(Planned("healthy", "decode_heavy", dose=0.5), {})


def test_rescoring_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    """No index: nothing was kept there."""
    with pytest.raises(HeadraceError, match="--keep"):
        rescore(tmp_path, [])
    (tmp_path / INDEX).write_bytes(msgspec.json.encode(row(0).kept) + b"\n")
    (one,) = rescore(tmp_path, []).rows
    assert one.problem
