"""Run folders that say little, or something odd: a document all the same, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.records import Counters
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass
from headrace.runs.reader import Run

MakeRun = Callable[[Any], Run]


def diagnose(run: Run) -> DiagnosisDocument:
    """Return the document as it comes back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(diagnosis_document(Analysis(run))), type=DiagnosisDocument)


def set_counters(run: Run, counters: Counters) -> None:
    """Change what a run counted, wherever it stands."""
    run.info.counters = counters
    assert run.info.summary is not None
    run.info.summary["counters"] = msgspec.to_builtins(counters)


def test_an_empty_folder(builder: Any) -> None:
    """Nothing was done: nothing is made up."""
    found = diagnose(builder.stage("work").stage("deliver", kind="io").finish())
    assert found.first.verdict in (VerdictClass.INCONCLUSIVE, VerdictClass.UNTRUSTED)
    assert found.first.gain is None


def test_a_run_of_an_older_headrace(builder: Any) -> None:
    """Without stages in run.json: profile again."""
    ended = np.arange(1, 101) * 0.01
    builder.spans("work", arrived=ended - 0.01, ended=ended, cpu=0.01 + 0 * ended, run_delay=0 * ended)
    found = diagnose(builder.finish(summary=False))
    assert found.first.verdict in (VerdictClass.INCONCLUSIVE, VerdictClass.UNTRUSTED)


def test_a_run_that_was_killed(make_run: MakeRun, made: Any, pipe: Any, builder: Any) -> None:
    """Still `running`, without exact counts: a verdict from the spans, with a warning, or the reason why not."""
    run = make_run(pipe(stages=[made(name="decode", work="decode", cpu=0.01)]))
    run.info.status, run.info.summary = "running", None
    found = diagnose(run)
    assert found.first.verdict in (VerdictClass.DECODE, VerdictClass.INCONCLUSIVE, VerdictClass.UNTRUSTED)


def test_only_failures(builder: Any) -> None:
    """Every item failed in its first stage: that is the verdict, with the error, its number and its place."""
    ended = np.arange(1, 401) * 0.01
    builder.stage("decode").stage("deliver").spans("decode", arrived=ended - 0.01, ended=ended, outcome="failed")
    run = builder.finish(counters=Counters(received=400, dead_lettered=400))
    origin = {"error": "AttributeError", "file": "jobs.py", "line": 7, "function": "preprocess"}
    reason = {"code": "decode", "count": 400, "example": "AttributeError: no 'men' at jobs.py:7", "origin": origin}
    assert run.info.summary is not None
    run.info.summary["reasons"] = [reason]
    found = diagnose(run)
    assert (found.first.verdict, found.first.stage, found.first.gain) == (VerdictClass.FAILURES, "decode", None)
    assert "0 delivered, 400 dead-lettered: 400 x decode: AttributeError: no 'men' at jobs.py:7" in found.first.says
    assert not any("profile" in remedy.command for remedy in found.first.remedies)


def test_failures_without_counted_reasons_are_read_from_the_file(builder: Any) -> None:
    """A run that did not count its reasons has a line for each failure."""
    ended = np.arange(1, 41) * 0.01
    builder.stage("work").stage("deliver").spans("work", arrived=ended - 0.01, ended=ended, outcome="failed")
    lines = [
        {"job_id": f"job-{n}", "attempt": 1, "outcome": "rejected", "reason": f"work: item job-{n}: ValueError: bad",
         "settled_unix_seconds": 1.0}
        for n in range(40)
    ]  # fmt: skip
    (builder.folder.path / "errors.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    found = diagnose(builder.finish(counters=Counters(received=40, rejected=40)))
    assert found.first.verdict is VerdictClass.FAILURES
    assert "40 x work: item ...: ValueError: bad" in found.first.says


def test_some_failures_are_said_beside_the_verdict(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """One in five dead-lettered is no verdict, and is not passed over."""
    run = make_run(pipe(stages=[made(name="decode", work="decode", cpu=0.01)]))
    set_counters(run, Counters(received=500, delivered=400, dead_lettered=100))
    found = diagnose(run)
    assert found.first.verdict is not VerdictClass.FAILURES
    assert any("400 delivered, 100 dead-lettered" in warning for warning in found.warnings)


def test_jobs_that_were_put_aside_did_not_fail(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """A receiver that is slow sends most jobs back to the queue for a while: that is no failure."""
    run = make_run(pipe(stages=[made(name="decode", work="decode", cpu=0.01)]))
    set_counters(run, Counters(received=1000, delivered=400, retried=600))
    assert run.info.summary is not None
    run.info.summary["reasons"] = [{"code": "share.full", "count": 0, "retried": 600, "example": "it answers slowly"}]
    found = diagnose(run)
    assert found.first.verdict is VerdictClass.DECODE
    assert not any("share.full" in warning for warning in found.warnings)


def test_most_failures_leave_the_bottleneck_as_the_runner_up(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """A pipeline that gives most back on purpose still says what limits it."""
    run = make_run(pipe(stages=[made(name="decode", work="decode", cpu=0.01)]))
    set_counters(run, Counters(received=1000, delivered=400, rejected=600))
    found = diagnose(run)
    assert found.first.verdict is VerdictClass.FAILURES
    assert found.runner_up is not None
    assert found.runner_up.verdict is VerdictClass.DECODE


def test_one_stage_that_costs_nothing(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """Items of a microsecond divide by nothing."""
    run = make_run(pipe(stages=[made(name="pass", cpu=1e-6)], num_jobs=300))
    assert diagnose(run).first.says


@pytest.mark.parametrize("state", ["gil", "lock", "network", "disk", "sleep", "process", "other"])
@pytest.mark.parametrize("name", ["fetch", "preprocess", "deliver"])
def test_any_stage_may_wait_for_anything(make_run: MakeRun, made: Any, pipe: Any, name: str, state: str) -> None:
    """Whatever a stage waits for, it is the stage that is found, by some class."""
    kind = "cpu" if name == "preprocess" else "io"
    stage = made(name=name, kind=kind, cpu=0.001, wait=0.02, state=state, workers=2)
    device = made(name="process", kind="device", work="model", cpu=0.001, batch=1)
    run = make_run(pipe(stages=[device, stage] if name == "deliver" else [stage, device], num_jobs=200))
    found = diagnose(run)
    assert found.first.stage == name
    assert found.first.verdict is not VerdictClass.INCONCLUSIVE
