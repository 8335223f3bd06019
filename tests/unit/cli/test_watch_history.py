"""A history before the run: a full disk keeps no run from starting, a wrong file does."""

from __future__ import annotations

import argparse
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.errors import LedgerError
from headrace.cli.watch_history import open_companion
from headrace.monitor.history.store import History


def _open(file: Path) -> object:
    pipeline = hr.Pipeline(hr.items([1]), stages=[hr.stage("same", lambda number: number)], delivery=hr.collect())
    args = argparse.Namespace(history=str(file), history_window=None, output=None)
    return open_companion(args, pipeline, hr.Plan(), None)


@contextmanager
def _disk_of(num_bytes: int) -> Iterator[None]:
    """Let no file become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_keeps_no_run_from_starting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, and the run writes its line once there is room."""
    with _disk_of(2048):
        companion = _open(tmp_path / "history.sqlite")
    assert companion is not None
    assert "runs all the same" in capsys.readouterr().err


def test_nor_does_a_file_that_the_disk_damaged(tmp_path: Path) -> None:
    """Its first page is good, and not the rest."""
    file = tmp_path / "history.sqlite"
    History(file).close()
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    with pytest.raises(LedgerError):
        History(file)
    assert _open(file) is not None


def test_what_is_no_history_is_an_error(tmp_path: Path) -> None:
    """A folder, text, the file of something else, and one below a file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database" * 100)
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE one (two)")
    for name in ("folder", "text", "other", "text/below"):
        with pytest.raises(LedgerError):
            _open(tmp_path / name)
