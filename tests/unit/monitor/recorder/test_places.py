"""Where recordings are: those of killed runs are kept, with all their workers."""

import os
from pathlib import Path

import pytest

from headrace.base.records import SCHEMA_VERSION
from headrace.monitor.recorder import places
from headrace.monitor.recorder.recording import Identity, pack_identity
from headrace.monitor.recorder.ring import LEAST_SIZE, RingWriter, own_root
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
