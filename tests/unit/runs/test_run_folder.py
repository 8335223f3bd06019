"""The run folder and its run.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import RunFolderError
from headrace.base.formatting import encodable
from headrace.base.records import SCHEMA_VERSION, Counters
from headrace.runs.earlier_run import take_folder
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder


def test_create_writes_what_is_known_at_the_start(tmp_path: Path) -> None:
    """A run.json is there before the first job, with status running."""
    folder = RunFolder.create(
        tmp_path / "a" / "b", pipeline="app:pipeline", plans={"p1": {"version": 1}}, data_fingerprint={"num_items": 3}
    )
    info = read_run(folder.path).info
    assert (info.schema_version, info.status, info.pipeline) == (SCHEMA_VERSION, "running", "app:pipeline")
    assert info.plans == {"p1": {"version": 1}}
    assert info.data_fingerprint == {"num_items": 3}
    assert info.clock_offsets_ns == {info.host: 0}
    assert info.versions["numpy"]
    assert info.hardware.num_cores >= 1
    assert info.hardware.memory_bytes


def test_update_and_finish_are_read_back(folder: RunFolder) -> None:
    """Counters, cost curves and the end of a run survive the file."""
    folder.update(cost_curves={"process": {1: [0.05, 0.051], 8: [0.3]}})
    folder.finish("finished", counters=Counters(received=5, delivered=4, rejected=1, notes={"decode.pillow": 2}))
    info = read_run(folder.path).info
    assert info == folder.info
    assert info.status == "finished"
    assert info.cost_curves["process"][8] == [0.3]
    assert info.counters.notes == {"decode.pillow": 2}
    assert info.ended_monotonic_ns is not None
    assert info.ended_monotonic_ns >= info.started_monotonic_ns


def test_an_earlier_run_is_refused(folder: RunFolder) -> None:
    """Nothing is overwritten without --force, and the message names both."""
    folder.finish("finished")
    with pytest.raises(RunFolderError, match=r"earlier run.*--force") as caught:
        RunFolder.create(folder.path)
    assert str(folder.path) in str(caught.value)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["report.html", "errors.jsonl", "run.json"])
def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path, name: str, force: bool) -> None:
    """A home folder has files of the same names: not even --force takes or changes what no run was written to."""
    (tmp_path / name).write_text("{}")
    with pytest.raises(RunFolderError, match=r"not empty and holds no run") as caught:
        RunFolder.create(tmp_path, force=force)
    assert str(tmp_path) in str(caught.value)
    assert (tmp_path / name).read_text() == "{}"


def test_force_removes_the_earlier_run_and_nothing_else(folder: RunFolder) -> None:
    """With --force the earlier run's files go, and files of other origin stay."""
    stale = folder.spans / "h-1-000000.parquet"
    stale.write_bytes(b"old")
    (folder.path / "errors.jsonl").write_text("old")
    (folder.path / "notes.txt").write_text("mine")
    folder.finish("finished")
    RunFolder.create(folder.path, force=True)
    assert not stale.exists()
    assert not (folder.path / "errors.jsonl").exists()
    assert (folder.path / "notes.txt").read_text() == "mine"


def test_force_removes_what_an_earlier_training_said_of_itself(folder: RunFolder) -> None:
    """Another process may have the same number, and be killed before it says what it trains."""
    earlier = ("training/host-7.json", "training/.host-7.json.7-1.tmp", "traces/host_7.27.pt.trace.json.gz")
    others = ("training/notes.json", "traces/mine.json.gz")
    for name in (*earlier, *others):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("old")
    folder.finish("finished")
    RunFolder.create(folder.path, force=True)
    assert [name for name in (*earlier, *others) if (folder.path / name).exists()] == list(others)


@pytest.fixture
def supervised(tmp_path: Path) -> Path:
    """The folder of two supervised workers' runs, and of somebody else's files."""
    path = tmp_path / "supervised"
    for number in range(2):
        RunFolder.create(path / f"worker-{number}-1")
    (path / "supervised.json").write_text('{"schema": "headrace.supervised/1"}')
    (path / "worker-0-1" / "notes.txt").write_text("mine")
    (path / "worker-1-2").mkdir()
    (path / "worker-1-2" / "notes.txt").write_text("mine")
    return path


@pytest.mark.parametrize("is_known", [True, False], ids=["told", "killed before it told"])
def test_the_runs_of_workers_are_an_earlier_run(supervised: Path, is_known: bool) -> None:
    """A run of one process takes their folder with --force, and nothing else that is in it."""
    if not is_known:
        (supervised / "supervised.json").unlink()
    with pytest.raises(RunFolderError, match=r"earlier run.*--force"):
        RunFolder.create(supervised)
    RunFolder.create(supervised, force=True)
    left = sorted(str(path.relative_to(supervised)) for path in supervised.rglob("*") if path.is_file())
    assert left == ["run.json", "worker-0-1/notes.txt", "worker-1-2/notes.txt"]


def test_workers_take_the_folder_of_an_earlier_run(supervised: Path, folder: RunFolder) -> None:
    """With --force, be it one of workers or of one process."""
    folder.finish("finished")
    for path in (supervised, folder.path):
        with pytest.raises(RunFolderError, match=r"earlier run.*--force"):
            take_folder(path, force=False)
        take_folder(path, force=True)
        assert [one.name for one in path.rglob("*") if one.is_file() and one.name != "notes.txt"] == []


def test_files_that_are_called_as_workers_runs_are_left(tmp_path: Path) -> None:
    """No run was written there."""
    (tmp_path / "supervised.json").write_text("{}")
    (tmp_path / "worker-0-1").mkdir()
    with pytest.raises(RunFolderError, match=r"not empty and holds no run"):
        take_folder(tmp_path, force=True)


def test_a_folder_that_a_run_writes_into_is_not_taken(folder: RunFolder, tmp_path: Path) -> None:
    """Not even with --force, until that run has ended or its process has died; nothing of it is touched."""
    for _ in range(2):
        with pytest.raises(RunFolderError, match=r"a run that goes on now writes into .*/run"):
            RunFolder.create(folder.path, force=True)
    assert read_run(folder.path).info == folder.info
    folder.finish("finished")
    RunFolder.create(folder.path, force=True)
    program = (
        "import os, sys; from headrace.runs.run_folder import RunFolder; RunFolder.create(sys.argv[1]); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "killed"], check=True)
    RunFolder.create(tmp_path / "killed", force=True)


def test_a_fork_that_ends_does_not_let_go_for_its_parent(folder: RunFolder) -> None:
    """Workers are forks of who holds the folder."""
    child = os.fork()
    if child == 0:
        try:
            folder.finish("finished")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(RunFolderError, match="goes on now"):
        RunFolder.create(folder.path, force=True)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    """An empty folder needs no --force."""
    RunFolder.create(tmp_path)
    assert (tmp_path / "run.json").exists()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A file in the folder's place gives an error that names it."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RunFolderError, match=str(file)):
        RunFolder.create(file)


def test_a_folder_without_rights_is_refused(tmp_path: Path) -> None:
    """A folder that may not be written gives an error that names it."""
    tmp_path.chmod(0o500)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may write everywhere, `nobody` may not
    try:
        with pytest.raises(RunFolderError, match="cannot be written"):
            RunFolder.create(tmp_path / "run")
    finally:
        os.seteuid(user)


def test_what_cannot_be_read_back_is_not_written(folder: RunFolder) -> None:
    """A value of the wrong type is the caller's mistake, and the file keeps its content."""
    before = (folder.path / "run.json").read_bytes()
    with pytest.raises(msgspec.ValidationError):
        folder.update(status="fine")
    with pytest.raises(TypeError):
        folder.update(colour="red")
    assert (folder.path / "run.json").read_bytes() == before
    folder.update(status="failed")


def test_full_disk_keeps_the_earlier_run_json(folder: RunFolder) -> None:
    """An update that the disk refuses is an error, leaves the file as it was and no temporary file behind."""
    program = """
import resource, sys
from pathlib import Path
from headrace.base.errors import RunFolderError
from headrace.runs.earlier_run import take_folder
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), read_run(sys.argv[1]).info)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    folder.finish("finished")
except RunFolderError as error:
    print(error)
"""
    before = sorted(folder.path.iterdir()), (folder.path / "run.json").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder.path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "cannot be written" in done.stdout
    assert (sorted(folder.path.iterdir()), (folder.path / "run.json").read_bytes()) == before


def test_values_that_json_does_not_know_are_text(folder: RunFolder, tmp_path: Path) -> None:
    """A path in a table of settings does not stop the run from being recorded."""
    folder.update(variants=[{"artifact": tmp_path / "model.onnx"}])
    assert read_run(folder.path).info.variants == [{"artifact": str(tmp_path / "model.onnx")}]


def test_run_json_is_plain_json(folder: RunFolder) -> None:
    """Other tools read run.json without headrace."""
    assert json.loads((folder.path / "run.json").read_text())["schema_version"] == SCHEMA_VERSION


def test_encodable_leaves_unicode_alone() -> None:
    """Text that UTF-8 can hold is returned as it is."""
    assert encodable("café") == "café"


def test_discarded_folder_is_gone(tmp_path: Path) -> None:
    """A run that never began leaves nothing, but what others put into its folder stays."""
    RunFolder.create(tmp_path / "empty").discard()
    other = RunFolder.create(tmp_path / "kept")
    (other.path / "notes.txt").write_text("mine")
    other.discard()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["notes.txt"]
    assert not (tmp_path / "empty").exists()


def test_names_that_are_not_unicode_are_written(tmp_path: Path) -> None:
    """Files and arguments may be any bytes; Python reads them as surrogates, which JSON cannot hold."""
    RunFolder.create(tmp_path / "run", pipeline="tr\udce9.py", options=["--a\udcff"]).finish("finished")
    info = read_run(tmp_path / "run").info
    assert (info.pipeline, info.options) == ("tr\\udce9.py", ["--a\\udcff"])


def test_the_folder_is_the_same_wherever_code_of_the_run_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage may change the working folder; what is written later comes where the rest is."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder.finish("finished")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
    assert folder.spans == tmp_path / "run" / "spans"
    assert folder.given == Path("run")
