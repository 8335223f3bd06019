"""Run folders that say little, or something odd: a document all the same, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.diagnose.diagnosis import diagnosis_document
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass
from headrace.runs.reader import Run

MakeRun = Callable[[Any], Run]


def diagnose(run: Run) -> DiagnosisDocument:
    """Return the document as it comes back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(diagnosis_document(run)), type=DiagnosisDocument)


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


def test_only_failures(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """Every item failed in its first stage: nothing was delivered, and no rate is made up."""
    run = make_run(pipe(stages=[made(name="decode", work="decode", cpu=0.01, outcome="failed")]))
    assert diagnose(run).first.verdict in (VerdictClass.INCONCLUSIVE, VerdictClass.UNTRUSTED)


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
