"""`headrace ladder`: what its arguments refuse."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.cli import main

JOBS = """
import headrace as hr

pipeline = hr.Pipeline(hr.folder("items", patterns=["*.txt"]), stages=[hr.stage("size", len)], delivery=hr.collect())
"""


def test_a_folder_that_is_not_empty_is_refused_by_its_own_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--run names the folder; -o and --force, which mean the result's file, are not suggested, and nothing is touched."""
    (tmp_path / "ladder_jobs.py").write_text(JOBS)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ladder_jobs", raising=False)
    assert main(["ladder", "ladder_jobs.py:pipeline", "--run", "kept"]) == 2
    told = capsys.readouterr().err
    assert "--run kept is not empty" in told
    assert "--force" not in told
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["mine.txt"]
