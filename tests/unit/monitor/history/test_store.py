"""The history's file: lines, windows, several writers, and files that are none."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import LedgerError
from headrace.monitor.history.store import History, history_path
from headrace.runs.formats.history import HistoryLine, HistoryWindow, StageWindow

_SUMS = StageWindow(40, (40.0, *(0.0,) * 27))


def make_line(**fields: Any) -> HistoryLine:
    """Return a line of a run."""
    known = {"kind": "run", "began_unix_seconds": 100.0, "pipeline": "jobs:pipeline", "plan_id": "p", "machine": "m"}
    return HistoryLine(**{**known, **fields})


def _window(began: float = 100.0, delivered: int = 7) -> HistoryWindow:
    return HistoryWindow(began_unix_seconds=began, seconds=10.0, delivered=delivered, stages={"decode": _SUMS})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a history's file that is not there yet."""
    return tmp_path / "deep" / "history.sqlite"


def test_the_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one given, else the variable's, else beside the ledger."""
    monkeypatch.setenv("HEADRACE_HISTORY", "/data/all.sqlite")
    assert history_path("mine") == Path("mine")
    assert history_path() == Path("/data/all.sqlite")
    monkeypatch.setenv("HEADRACE_HISTORY", "")
    assert history_path() == Path("runs/history.sqlite")


def test_lines_come_back_the_newest_first(file: Path) -> None:
    """With ids, also after the file was closed."""
    with History(file) as history:
        history.add_line(make_line(key="a"))
        history.add_line(make_line(key="b", began_unix_seconds=200.0, pipeline="other:pipeline"))
    with History(file, must_exist=True) as history:
        assert [line.id for line in history.lines()] == ["h2", "h1"]
        assert [line.id for line in history.lines(pipeline="jobs:pipeline")] == ["h1"]


def test_processes_of_one_run_are_one_line(file: Path) -> None:
    """What they did is added up, and so are their windows of the same time; one was at work for half of the time."""
    with History(file) as history:
        for rate, ended in ((3.0, 110.0), (4.0, 120.0)):
            row = history.add_line(make_line(key="a", delivered=10, throughput=rate, ended_unix_seconds=ended))
            history.write_window(row, 0, _window())
        (line,) = history.lines()
        assert (line.delivered, line.throughput, line.ended_unix_seconds) == (20, 5.5, 120.0)
        ((key, window),) = history.windows("jobs:pipeline", "p", "m")
        assert (key, window.delivered, window.stages["decode"].rows) == ("a", 14, 80)


def test_a_window_in_progress_is_written_again(file: Path) -> None:
    """The newer one takes its place."""
    with History(file) as history:
        row = history.add_line(make_line(key="a"))
        history.write_window(row, 0, _window(delivered=1))
        history.write_window(row, 0, _window(delivered=2))
        history.change_line(row, make_line(key="a", status="ended"))
        assert [window.delivered for _, window in history.windows("jobs:pipeline", "p", "m")] == [2]
        assert history.lines()[0].status == "ended"


def test_a_folder_that_is_added_again_replaces_its_line(file: Path) -> None:
    """Also the line that the run itself wrote; an earlier run in the same folder stays."""
    with History(file) as history:
        history.add_line(make_line(key="old", folder="/runs/x", began_unix_seconds=1.0, ended_unix_seconds=50.0))
        for key in ("live", "again"):
            history.add_line(make_line(key=key, folder="/runs/x", ended_unix_seconds=160.0), [_window()])
        assert [line.key for line in history.lines()] == ["again", "old"]
        assert len(history.windows("jobs:pipeline", "p", "m")) == 1


def test_workers_with_one_folder_do_not_replace_each_other(file: Path) -> None:
    """Each writes its line when it ends, at much the same time; a folder that is added again is removed first."""
    with History(file) as history:
        for _ in range(2):
            history.remove_run("/runs/x", "a")
            for ended in (150.0, 160.0):
                history.add_line(
                    make_line(key="a", folder="/runs/x", delivered=10, ended_unix_seconds=ended), [_window()]
                )
            (line,) = history.lines()
            assert line.delivered == 20


def test_a_restart_leaves_older_windows_out(file: Path) -> None:
    """From then on there is a new baseline."""
    with History(file) as history:
        history.add_line(make_line(key="a"), [_window()])
        history.add_line(HistoryLine(kind="restart", began_unix_seconds=150.0, pipeline="jobs:pipeline"))
        assert history.windows("jobs:pipeline", "p", "m") == []
        history.add_line(make_line(key="b", began_unix_seconds=200.0), [_window(200.0)])
        assert [key for key, _ in history.windows("jobs:pipeline", "p", "m")] == ["b"]


def test_many_writers_lose_nothing(file: Path) -> None:
    """Each through a connection of its own, the first of which makes the file."""

    def write(number: int) -> None:
        with History(file) as history:
            history.add_line(make_line(key=f"run {number}"), [_window()])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    with History(file) as history:
        assert len(history.lines()) == len(history.windows("jobs:pipeline", "p", "m")) == 40


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    """Missing, of something else, damaged: each says what to do."""
    with pytest.raises(LedgerError, match=r"there is no history .*`headrace history add RUN`"):
        History(tmp_path / "none.sqlite", must_exist=True)
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="a SQLite file of something else, not a history"):
        History(other)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"no database at all" * 100)
    with pytest.raises(LedgerError, match="damaged or not a history"):
        History(damaged)
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"the folder of the history .* cannot be made"):
        History(tmp_path / "file" / "history.sqlite")


@pytest.mark.parametrize("document", ["{", '{"began_unix_seconds": "x"}', None])
def test_a_damaged_entry_is_named(file: Path, document: str | None) -> None:
    """Broken JSON, other types, and sums that are none."""
    import msgspec

    sums = msgspec.structs.replace(_window(), stages={"decode": StageWindow(40, (1.0, 2.0))})
    with History(file) as history:
        row = history.add_line(make_line(key="a"), [_window()])
        history.write_window(row, 0, sums)
    if document is not None:
        connection = sqlite3.connect(file)
        connection.execute("UPDATE windows SET document = ?", (document,))
        connection.commit()
        connection.close()
    with History(file) as history, pytest.raises(LedgerError, match="holds what cannot be read"):
        history.windows("jobs:pipeline", "p", "m")


def test_a_damaged_byte_is_explained(tmp_path: Path) -> None:
    """Also in the name that SQLite complains of, which is then no text."""
    file = tmp_path / "history.sqlite"
    History(file).close()
    content = file.read_bytes()
    content = content.replace(b"tablelineslines", b"tablel\xf5neslines")
    file.write_bytes(content.replace(b"CREATE TABLE lines", b"CREATE TABLX lines"))
    with pytest.raises(LedgerError), History(file) as history:
        history.lines()
