"""Real runs whose items take microseconds: the runtime is named, unless the machine is too busy to tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.diagnosis_text import as_text
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass
from headrace.runs.reader import read_run

pytestmark = pytest.mark.measures

NAMES = [f"step{number}" for number in range(9)]
#: What may be said where other programs take the cores, or too little was measured.
CANNOT_TELL = {VerdictClass.NEIGHBOUR, VerdictClass.UNTRUSTED, VerdictClass.INCONCLUSIVE}


def return_it(value: Any) -> Any:
    """Do nothing."""
    return value


def profile(folder: Path, *, num_jobs: int, executor: str) -> DiagnosisDocument:
    """Run nine stages that do nothing and diagnose them."""
    stages = [hr.stage(name, return_it) for name in NAMES]
    pipeline = hr.Pipeline(hr.items([b"x"] * num_jobs), stages=stages, delivery=hr.collect())
    plan = hr.Plan().with_settings([f"{name}.executor={executor}" for name in NAMES[1:]])
    hr.profile(pipeline, plan, output=folder)
    found = diagnosis_document(Analysis(read_run(folder)))
    print(as_text(found))  # what a failing test shows
    return found


def test_trivial_stages_with_threads_of_their_own_are_to_be_fused(tmp_path: Path) -> None:
    """RUNTIME, and the settings that it names are possible."""
    found = profile(tmp_path / "apart", num_jobs=30_000, executor="thread")
    assert found.first.verdict in {VerdictClass.RUNTIME, *CANNOT_TELL}
    if found.first.verdict is VerdictClass.RUNTIME:
        assert found.first.remedies[0].settings == tuple(f"{name}.executor=inline" for name in NAMES[1:])


def test_nothing_is_left_to_fuse_where_all_is_fused(tmp_path: Path) -> None:
    """Whatever the verdict, no stage is named that is inline already."""
    found = profile(tmp_path / "fused", num_jobs=30_000, executor="inline")
    settings = [setting for remedy in found.first.remedies for setting in remedy.settings]
    assert not [setting for setting in settings if setting.endswith("executor=inline")]
