"""The folder of incidents: bounded, one for one cause, whole or not there."""

import os
import shutil
import time
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError
from headrace.monitor.recorder.store import IncidentStore
from headrace.runs.formats.incident import FILE


def _write(store: IncidentStore, kind: str, *, num_bytes: int = 10, window: float = 0.0) -> bool:
    with store.new(kind, window_seconds=window) as folder:
        if folder is not None:
            (folder / FILE).write_bytes(bytes(num_bytes))
        return folder is not None


def test_one_cause_is_one_incident_in_its_window(tmp_path: Path) -> None:
    """Workers that see the same thing write it once; another cause is another incident, and who asks gets one each time."""
    store = IncidentStore(tmp_path / "incidents")
    assert _write(store, "slo", window=600)
    assert not _write(store, "slo", window=600)
    assert _write(store, "stall", window=600)
    assert _write(store, "asked")
    assert _write(store, "asked")
    assert len(store.incidents()) == 4


def test_the_oldest_go_first(tmp_path: Path) -> None:
    """By number and by bytes; the newest stays even where it alone is too large."""
    store = IncidentStore(tmp_path, most=3, most_bytes=1_000)
    for _ in range(5):
        _write(store, "asked")
    assert len(store.incidents()) == 3
    _write(store, "death", num_bytes=5_000)
    assert [path.name.split("-")[1] for path in store.incidents()] == ["death"]


def test_an_incident_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """No folder looks like an incident and is none."""
    store = IncidentStore(tmp_path)
    with pytest.raises(RunFolderError, match="free space"), store.new("slo"):
        raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    """With what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="--incidents"):
        IncidentStore(tmp_path / "file" / "incidents")


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    """What seems to be written in the future is not the same incident until then."""
    store = IncidentStore(tmp_path)
    assert _write(store, "slo", window=600)
    later = time.time() + 86_400
    os.utime(store.incidents()[0], (later, later))
    assert _write(store, "slo", window=600)


def test_another_process_may_remove_incidents_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone between the listing and the look at it is left out."""
    store, listed = IncidentStore(tmp_path), Path.iterdir
    _write(store, "asked")
    gone = store.incidents()[0]

    def list_then_remove(path: Path) -> list[Path]:
        found = list(listed(path))
        shutil.rmtree(gone, ignore_errors=True)
        return found

    monkeypatch.setattr(Path, "iterdir", list_then_remove)
    assert store.incidents() == []
    monkeypatch.undo()
    gone.mkdir()
    monkeypatch.setattr(Path, "iterdir", list_then_remove)
    assert _write(store, "asked", window=600)
