"""Parts become windows; one that cannot takes no other with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.records import Job
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.folder import DriftFolder
from headrace.monitor.drift.judging import recording
from headrace.monitor.drift.sums import Adder
from headrace.monitor.drift.watching import DriftWatcher
from headrace.runs.formats.drift import DriftWindow


def _watcher(folder: Path) -> tuple[Collector, DriftWatcher]:
    collector = Collector(budget_ratio=1.0, window_items=10)
    return collector, DriftWatcher(collector, DriftFolder(folder, make=True), 10)


def _pass(collector: Collector, number: int) -> None:
    job = Job(f"job-{number}", b"")
    collector.enter(job, "text", "decode", "text", None, 0)
    collector.answer(job, "cat")


def test_one_part_that_cannot_be_merged_loses_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of what came with it makes windows, and what is lost is counted."""
    collector, watcher = _watcher(tmp_path)
    for number in range(42):
        _pass(collector, number)
    turn = iter(range(100))
    merge = Adder.merge

    def broken(adder: Adder, window: DriftWindow) -> None:
        if next(turn) == 0:
            raise ValueError("no such sum")
        merge(adder, window)

    monkeypatch.setattr(Adder, "merge", broken)
    watcher.step(rest=True)
    watcher.close()
    windows, _ = DriftFolder(tmp_path).windows()
    (rest,) = DriftFolder(tmp_path).take_parts()
    assert sum(window.items for window in windows) + rest.items == 41
    assert sum(part.lost for part in collector.take(rest=True)) == 1


def test_a_window_that_cannot_be_written_loses_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one is judged."""
    collector, watcher = _watcher(tmp_path)
    for number in range(42):
        _pass(collector, number)
    turn = iter(range(100))

    def broken(windows: list[DriftWindow], folder: str) -> object:
        if next(turn) == 1:
            raise ValueError("no such judgement")
        return recording(windows, folder)

    monkeypatch.setattr("headrace.monitor.drift.watching.recording", broken)
    watcher.step()
    watcher.close()
    windows, _ = DriftFolder(tmp_path).windows()
    assert [window.items for window in windows] == [10, 10, 10]
    assert sum(part.lost for part in collector.take(rest=True)) == 10
