"""The tuning benchmark: what is kept, and what it comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import tuner
from benchmarks.tuner_pipelines import CASES


def test_what_is_kept_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of half an hour goes on where it was interrupted."""
    ran: list[str] = []

    def measure(case: Any, quick: bool) -> dict[str, Any]:
        ran.append(case.name)
        if case.name == "python" and ran.count("python") == 1:
            raise KeyboardInterrupt
        return {"name": case.name, "best_ratio": 0.98 + 0.001 * len(ran), "runs_share": 0.05}

    monkeypatch.setattr(tuner, "measure_case", measure)
    first = tuner.measure_all(False, keep=tmp_path)
    assert [one["name"] for one in first["pipelines"]] == ["downloads", "batch one"]
    assert first["interrupted"]
    second = tuner.measure_all(False, keep=tmp_path)
    assert [one["name"] for one in second["pipelines"]] == [case.name for case in CASES]
    assert ran == ["downloads", "batch one", "python", *(case.name for case in CASES[2:])]
    assert (second["interrupted"], second["min_best_ratio"]) == (False, 0.981)


def test_nothing_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted before the first pipeline was through."""

    def measure(case: Any, quick: bool) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner, "measure_case", measure)
    result = tuner.measure_all(False)
    assert result["min_best_ratio"] is None
    assert tuner.as_text(result) == "Nothing was measured."
