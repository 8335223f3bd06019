"""NNCF as a second opinion on int8, where it is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.techniques import REPAIRS, Subject
from headrace.validate.precision_audit import is_quantized

NNCF = next(technique for technique in REPAIRS if technique.name == "int8-nncf")


def subject(case: Any, tmp_path: Path) -> Subject:
    """Return the ordinary network as what is to be made cheaper."""
    store = ArtifactStore(tmp_path / "artifacts")
    return Subject(
        original=store.add(case.model), store=store, calibration=case.calibration, threads=1, flags=frozenset(),
        engines=("onnx", "openvino"),
    )  # fmt: skip


@pytest.mark.full
def test_its_file_answers_as_the_network_does(
    case: Any, nets: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On every engine, with nothing on standard output, and no trace in the environment."""
    pytest.importorskip("nncf")
    before = dict(os.environ)
    found = list(NNCF.try_on(subject(case, tmp_path)))
    assert [one.spec.model.engine for one in found] == ["onnx", "openvino"]
    made = Path(found[0].artifact.file)
    assert is_quantized(made)
    assert found[0].artifact.parameters["by"].startswith("NNCF ")
    assert (nets.answers(made, case.inputs).argmax(axis=1) == case.golden.labels).mean() > 0.98
    answers = np.asarray(found[1].spec.open()(case.inputs))
    assert (answers.argmax(axis=1) == case.golden.labels).mean() > 0.98
    assert capfd.readouterr().out == ""
    assert os.environ.get("NNCF_CI") == before.get("NNCF_CI")


def test_where_it_is_missing_the_extra_is_named(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is tried."""
    monkeypatch.setitem(sys.modules, "nncf", None)  # as if it were not installed
    assert "headrace[nncf]" in (NNCF.why_not(subject(case, tmp_path)) or "")
