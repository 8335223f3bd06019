"""Parts become windows; one that cannot takes no other with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.records import Job
from headrace.cli import main
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.folder import DriftFolder
from headrace.monitor.drift.judging import recording
from headrace.monitor.drift.learning import learn
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


def _pass_without(key: str, folder: Path, number_of_items: int) -> Collector:
    collector = Collector(key, budget_ratio=1.0, window_items=10)
    watcher = DriftWatcher(collector, DriftFolder(folder, make=True), 10)
    for number in range(number_of_items):
        job = Job(f"job-{number}", b"", attributes={"camera": number % 3, "site": "a"})
        collector.enter(job, "text", "decode", "text", None, 0)
        collector.answer(job, "cat")
    watcher.step(rest=True)
    watcher.close()
    return collector


def test_a_key_that_no_job_has_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the run, by `learn` and by `show`, with the names that would do."""
    says = "no job has 'kamera', so all items are one stratum; attributes that jobs have: camera, site"
    assert _pass_without("kamera", tmp_path, 405).missing_key() == says
    windows, _ = DriftFolder(tmp_path).windows()
    assert recording(windows, "").warnings == (says,)
    assert says in learn(windows, key="kamera", simulate=False).warnings
    assert main(["monitor", "drift", "show", str(tmp_path)]) == 0
    assert f"note: {says}" in capsys.readouterr().out


def test_a_key_that_jobs_have_is_no_news(tmp_path: Path) -> None:
    """Nor is it where there is none."""
    assert _pass_without("camera", tmp_path / "with", 15).missing_key() == ""
    assert _pass_without("", tmp_path / "none", 15).missing_key() == ""


def test_show_counts_what_waits_for_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is lost that makes no window yet; and the parts stay."""
    _pass_without("", tmp_path, 7)
    for _ in range(2):
        assert main(["monitor", "drift", "show", str(tmp_path)]) == 0
        assert "7 items more wait to fill a window" in capsys.readouterr().out


def test_show_refuses_a_folder_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty one is no recording that has just begun."""
    assert main(["monitor", "drift", "show", str(tmp_path)]) == 2
    assert "holds nothing of a drift monitor" in capsys.readouterr().err


def test_nothing_judged_is_not_steady(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Just after `learn` nothing is known of what comes."""
    _pass_without("", tmp_path, 405)
    assert main(["monitor", "drift", "learn", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["monitor", "drift", "show", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("NOTHING JUDGED: ")
    assert "as usual" not in said
