"""`headrace diagnose --decide`: the pipeline of a recorded run, started as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.cli.experimenting import _arguments_of
from headrace.runs.run_folder import RunFolder, RunInfo


def recorded(path: Path, pipeline: str, *options: str) -> RunInfo:
    """Return the record of a run that was started so."""
    return RunFolder.create(path, pipeline=pipeline, options=options, plans={}).info


def test_it_runs_what_was_recorded_without_its_limit(tmp_path: Path) -> None:
    """Pipeline, settings and source are those of the run; a limit would end the experiment before it tells anything."""
    options = ("--set", "work.workers=4", "--limit", "200", "--source", "photos", "--drain")
    found = _arguments_of(recorded(tmp_path / "run", "jobs.py:pipeline", *options))
    assert found.pipeline == "jobs.py:pipeline"
    assert found.settings == ["work.workers=4"]
    assert found.source == "photos"
    assert found.limit is None


def test_a_run_that_was_started_from_code_is_refused(tmp_path: Path) -> None:
    """Nobody can start it by its name; the message says what to type instead."""
    with pytest.raises(SettingsError, match="headrace profile MODULE:ATTRIBUTE --experiment"):
        _arguments_of(recorded(tmp_path / "run", "my pipeline"))


def test_a_run_of_a_service_is_refused(tmp_path: Path) -> None:
    """Its requests cannot be made again; the message says over what its pipeline can be experimented on."""
    service = RunFolder.create(tmp_path / "run", pipeline="jobs.py:pipeline", options=(), plans={}, served=True).info
    with pytest.raises(SettingsError, match="--source PATH --experiment"):
        _arguments_of(service)
