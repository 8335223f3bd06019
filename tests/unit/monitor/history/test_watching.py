"""A run that adds itself to a history: what it writes, and that nothing of it can end the run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

import headrace as hr
from headrace.monitor.history import watching
from headrace.monitor.history.judging import Judged
from headrace.monitor.history.lines import add_run
from headrace.monitor.history.moments import cpu_per_item
from headrace.monitor.history.store import History
from headrace.monitor.history.watching import HistoryWatch, Place
from headrace.runs.formats.history import StageDrift


def _run(watch: HistoryWatch, number: int = 60, output: Path | None = None) -> hr.Result:
    pipeline = hr.Pipeline(
        hr.items([bytes(1000 + number) for number in range(number)]),
        stages=[hr.stage("sum", lambda data: sum(data))],
        delivery=hr.collect(),
        name="jobs:pipeline",
    )
    return hr.run(pipeline, observers=[watch.counter], watch=watch.watch, output=output)


def test_a_run_writes_its_line_and_its_windows(tmp_path: Path) -> None:
    """With what it delivered, what each stage took, and the sums over its items."""
    file = tmp_path / "history.sqlite"
    result = _run(HistoryWatch(Place(file=file)))
    with History(file) as history:
        (line,) = history.lines()
        ((_, window),) = history.windows(line.pipeline, line.plan_id, line.machine)
    assert result.counters.delivered == line.delivered == window.delivered == 60
    assert line.status == "ended"
    assert line.ended_unix_seconds is not None
    assert set(line.cpu_per_item) == {"sum", "deliver"} == set(window.stages)
    assert line.bytes_per_item["sum"] == pytest.approx(1029.5)
    assert window.stages["sum"].rows == window.stages["sum"].moments[0] == 60
    assert window.yardstick is not None
    assert cpu_per_item(window.yardstick) > 0


def test_the_run_folder_gives_the_same(tmp_path: Path) -> None:
    """Added afterwards, it replaces the line, and has the same sums."""
    file = tmp_path / "history.sqlite"
    _run(HistoryWatch(Place(file=file, folder=str((tmp_path / "run").resolve()))), output=tmp_path / "run")
    with History(file) as history:
        (live,) = history.lines()
        ((_, of_live),) = history.windows(live.pipeline, live.plan_id, live.machine)
        assert add_run(history, tmp_path / "run", diagnose=False) == []
        (read,) = history.lines()
        ((_, of_folder),) = history.windows(read.pipeline, read.plan_id, read.machine)
    assert (read.pipeline, read.plan_id, read.machine) == (live.pipeline, live.plan_id, live.machine)
    assert read.status == "finished"
    assert of_folder.stages["sum"].rows == of_live.stages["sum"].rows
    assert of_folder.stages["sum"].moments == pytest.approx(of_live.stages["sum"].moments)


def test_a_member_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    """Of a run of several processes: those that can be read are added, and the other one is named."""
    for worker in ("worker-0-1", "worker-1-1"):
        _run(HistoryWatch(Place(file=tmp_path / "live.sqlite")), output=tmp_path / "run" / worker)
    (tmp_path / "run" / "worker-1-1" / "run.json").write_text("{")
    with History(tmp_path / "history.sqlite") as history:
        (said,) = add_run(history, tmp_path / "run", diagnose=False)
        (line,) = history.lines()
    assert said.startswith("worker-1-1 is left out: ")
    assert line.delivered == 60


def test_a_history_that_cannot_be_written_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and the items are delivered."""
    file = tmp_path / "history.sqlite"
    file.write_bytes(b"something else" * 1000)
    watch = HistoryWatch(Place(file=file))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert _run(watch).counters.delivered == 60
    assert watch.num_failed_writes == 1
    assert [record.getMessage() for record in caplog.records if "the run goes on" in record.getMessage()] != []


def test_each_window_is_judged_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts are published; here the windows are as short as the looks at them."""
    file, published = tmp_path / "history.sqlite", []
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.01)

    def publish(drifts: Sequence[StageDrift]) -> None:
        published.append(drifts)

    def work(data: bytes) -> int:
        return sum(sum(data) for _ in range(40))

    watch = HistoryWatch(Place(file=file, window_seconds=0.02, publish=publish))
    pipeline = hr.Pipeline(hr.items([bytes(5000)] * 400), stages=[hr.stage("sum", work)], delivery=hr.collect())
    hr.run(pipeline, observers=[watch.counter], watch=watch.watch)
    with History(file) as history:
        (line,) = history.lines()
        found = history.windows(line.pipeline, line.plan_id, line.machine)
    assert published
    assert len(found) >= 2
    assert 0 < sum(window.stages["sum"].rows for _, window in found if "sum" in window.stages) <= 400  # metered ones
    assert sum(window.delivered for _, window in found) == 400


def test_a_run_that_is_shorter_than_a_window_is_judged_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A nightly job of minutes says itself that a stage is slower, once."""
    slower = StageDrift(stage="sum", verdict="slower", says="sum takes 12 % more CPU time per item")
    judged = Judged(12, (slower,), (), (12,))
    monkeypatch.setattr(watching, "judge_windows", lambda windows: judged)
    published: list[Sequence[StageDrift]] = []
    with caplog.at_level(logging.WARNING, "headrace"):
        _run(HistoryWatch(Place(file=tmp_path / "history.sqlite", publish=published.append)))
    assert published == [(slower,)]
    assert [record.getMessage() for record in caplog.records] == ["sum takes 12 % more CPU time per item"]
    assert caplog.records[0].__dict__["event"] == "performance_drift"
