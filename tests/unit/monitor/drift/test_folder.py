"""The folder that processes share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.monitor.drift import folder as module
from headrace.monitor.drift.folder import DriftFolder
from headrace.runs.formats.drift import DriftWindow, StratumSums


def _window(number: int, items: int = 10) -> DriftWindow:
    strata = {"": StratumSums(counts={"items": items})}
    return DriftWindow(began=float(number), ended=number + 1.0, items=items, sampled=items, strata=strata)


def test_one_process_judges_at_a_time(tmp_path: Path) -> None:
    """The second becomes the judge when the first leaves."""
    first, second = DriftFolder(tmp_path, make=True), DriftFolder(tmp_path, make=True)
    assert first.try_to_judge()
    assert not second.try_to_judge()
    first.leave()
    assert second.try_to_judge()
    second.leave()


def test_parts_come_in_the_order_of_time_and_once(tmp_path: Path) -> None:
    """A part is removed when it is read; what is no part is left out."""
    folder = DriftFolder(tmp_path, make=True)
    for number in (3, 1, 2):
        assert folder.write_part(_window(number))
    (tmp_path / "parts" / "0.json").write_bytes(b"\xff not a part")
    assert [part.began for part in folder.take_parts()] == [1.0, 2.0, 3.0]
    assert not list(folder.take_parts())


def test_parts_that_nobody_merges_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound none is written, and the caller learns it."""
    monkeypatch.setattr(module, "MOST_PARTS", 2)
    folder = DriftFolder(tmp_path, make=True)
    assert [folder.write_part(_window(number)) for number in range(4)] == [True, True, True, False]


def test_the_oldest_windows_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few windows each, and a few files."""
    monkeypatch.setattr(module, "FILE_WINDOWS", 2)
    monkeypatch.setattr(module, "MOST_FILES", 3)
    folder = DriftFolder(tmp_path, make=True)
    for number in range(11):
        folder.add_window(_window(number))
    windows, damaged = folder.windows()
    assert [window.began for window in windows] == [6.0, 7.0, 8.0, 9.0, 10.0]
    assert not damaged


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    """A line that was cut off hides no other."""
    folder = DriftFolder(tmp_path, make=True)
    folder.add_window(_window(1))
    file = tmp_path / "windows" / "000001.jsonl"
    file.write_bytes(file.read_bytes() + encode_document(_window(2))[:40] + b"\n" + encode_document(_window(3)) + b"\n")
    windows, damaged = folder.windows()
    assert [window.began for window in windows] == [1.0, 3.0]
    assert damaged == 1


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": "other/9"}', b"\xff\xfe"])
def test_a_damaged_baseline_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    """It names the file and the command."""
    folder = DriftFolder(tmp_path, make=True)
    (tmp_path / "baseline.json").write_bytes(content)
    with pytest.raises(SettingsError, match=r"baseline\.json is damaged .*headrace monitor drift learn"):
        folder.baseline()


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    """Before anything runs."""
    with pytest.raises(SettingsError, match="is not a folder; expected one that `headrace run --drift DIR` wrote"):
        DriftFolder(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be made"):
        DriftFolder(tmp_path / "file" / "inside", make=True)


@pytest.mark.parametrize("name", ["windows/000001.jsonl", "parts/1.json", "scores.json", "judge.lock", "baseline.json"])
def test_a_pipe_in_the_folder_holds_nobody_up(tmp_path: Path, name: str) -> None:
    """Nor do names that look like numbers."""
    folder = DriftFolder(tmp_path / "watch", make=True)
    os.mkfifo(folder.path / name)
    (folder.path / "windows" / "\u00b2.jsonl").touch()
    folder.try_to_judge()
    assert list(folder.take_parts()) == []
    assert folder.windows() == ([], int(name.startswith("windows")))
    assert folder.scores() is None
    if name == "baseline.json":
        with pytest.raises(SettingsError, match="cannot be read"):
            folder.baseline()
    folder.leave()
