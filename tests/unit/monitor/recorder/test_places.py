"""Where recordings are: those of killed runs are kept, with all their workers."""

import os
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError
from headrace.base.records import SCHEMA_VERSION
from headrace.cli import main
from headrace.monitor.recorder import places, ring
from headrace.monitor.recorder.recording import Identity, pack_identity
from headrace.monitor.recorder.ring import LEAST_SIZE, BlockKind, RingWriter, own_root
from headrace.runs.run_folder import RunInfo


def _leave_behind(root: Path, supervisor: int, worker: int, at: int) -> Path:
    """Write the recording of a worker that is dead."""
    folder = root / f"{supervisor}-{worker}"
    info = RunInfo(
        schema_version=SCHEMA_VERSION, headrace_version="0", status="running", pipeline="m:p", host="host",
        started_unix_seconds=1_000.0, started_monotonic_ns=0,
    )  # fmt: skip
    writer = RingWriter(folder, LEAST_SIZE)
    identity = Identity(
        process=supervisor + worker, process_started=1, boot="another", supervisor=supervisor, info=info
    )
    writer.identify(pack_identity(identity))
    writer.close(remove=False)
    os.utime(folder, ns=(at, at))
    return folder


def test_the_newest_killed_runs_are_kept_with_all_their_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight workers that were killed together are one run; the fifth run before is removed."""
    monkeypatch.setattr(places, "SHARED_MEMORY", tmp_path)
    now = (tmp_path.stat().st_mtime_ns // 10**9 - 100) * 10**9
    root = own_root(tmp_path)
    old = [_leave_behind(root, 1_000 * run, 1, now + run) for run in range(1, 5)]
    workers = [_leave_behind(root, 9_000, worker, now + 100 + worker) for worker in range(8)]
    places.make_place()
    assert all(folder.exists() for folder in (*workers, *old[1:]))
    assert not old[0].exists()


def _leave_foreign(root: Path, name: str, layout: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write what another version of headrace might have recorded: another layout, or an identity of another form."""
    with monkeypatch.context() as patch:
        patch.setattr(ring, "_MAGIC", layout)
        writer = RingWriter(root / name, LEAST_SIZE)
        writer.append(BlockKind.IDENTITY, b'{"who": 7, "info": {"headrace_version": "9.1"}}')
        writer.close(remove=False)
    return root / name


@pytest.mark.parametrize(("layout", "by"), [(b"hrF1", "headrace 9.1"), (b"hrF0", "another version of headrace")])
def test_a_recording_of_another_version_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], layout: bytes, by: str
) -> None:
    """However it is asked for; nothing says that no run records."""
    monkeypatch.setattr(places, "SHARED_MEMORY", tmp_path)
    folder = _leave_foreign(own_root(tmp_path), "4711-abc", layout, monkeypatch)
    for name in (None, "4711", str(folder)):
        with pytest.raises(RunFolderError, match=rf"was recorded by {by}, in a form .*`headrace snapshot {folder}`"):
            places.find_recordings(name)
    with pytest.raises(RunFolderError, match="no run of process 12 records"):
        places.find_recordings("12")
    assert main(["snapshot", "--list"]) == 0
    assert capsys.readouterr().out.startswith(f"{folder} was recorded by {by}")


def test_a_run_of_another_version_keeps_its_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its process lives; those of dead ones are kept as the newest are."""
    monkeypatch.setattr(places, "SHARED_MEMORY", tmp_path)
    root = own_root(tmp_path)
    alive, dead = (_leave_foreign(root, f"{pid}-abc", b"hrF0", monkeypatch) for pid in (os.getpid(), 2**22 + 1))
    for folder in (alive, dead):
        os.utime(folder, (1_000, 1_000))
    places.make_place()
    assert alive.exists()
    assert not dead.exists()
