"""What headrace wrote into a folder before: recognised there, and removed where the user says so."""

from __future__ import annotations

import contextlib
from pathlib import Path

from headrace.base.errors import RunFolderError
from headrace.runs.contained_files import is_own_folder, own_file
from headrace.runs.file_names import (
    ERRORS_FILE,
    HOT_SPOTS_FOLDER,
    HOT_SPOTS_PATTERNS,
    REPORT_FILE,
    RUN_JSON,
    SPANS_FOLDER,
    SUPERVISED_FILE,
    TRACES_FOLDER,
    TRACES_PATTERNS,
)
from headrace.runs.formats import experiment, isolation, layers, profiling, training
from headrace.runs.held_folder import HeldFolder
from headrace.runs.resource_files import remove_resource_files

#: {folder within a run folder: what a run writes there}.
_PATTERNS = {
    SPANS_FOLDER: ("*.parquet", ".*.parquet.tmp"),
    HOT_SPOTS_FOLDER: HOT_SPOTS_PATTERNS,
    training.FOLDER: ("*-[0-9]*.json", ".*-[0-9]*.json.*.tmp"),
    TRACES_FOLDER: TRACES_PATTERNS,
}


def take_folder(path: Path, *, force: bool, resumed: bool = False, in_code: bool = False) -> HeldFolder:
    """Make a folder for a run, or for the runs of several workers, or take that of an earlier one; return the hold on it.

    Args:
        path: New or empty folder; parents are made.
        force: Take the folder of an earlier run. The files of that run are removed; other files are left.
        resumed: Whether the run goes on with another, for the message.
        in_code: Whether the folder is an argument of a function, and no option of a command; for the message.

    Raises:
        RunFolderError: If the folder is not empty and `force` is not given or no run was ever written there, if a run writes
            into it now, or if it cannot be written.
    """
    other, replace = ("another output", "force=True") if in_code else ("another with -o", "--force")
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = HeldFolder(path)
        if not any(path.iterdir()):
            return held
        if not _was_run_folder(path):
            raise RunFolderError(
                f"folder {path} is not empty and holds no run ({RUN_JSON}) that {replace} could replace; choose {other}"
            )
        if not force:
            raise RunFolderError(
                f"{path} holds the record of the run so far, and what is left gets a record of its own: choose another folder, "
                f"such as -o {path}-2 (--resume goes by the results and needs none of {path})"
                if resumed
                else f"{path} holds an earlier run; choose {other}, or replace it with {replace}"
            )
        _remove_earlier_run(path)
        return held
    except OSError as error:
        raise explain_unwritable(path, error, in_code=in_code) from error


def discard(path: Path) -> None:
    """Remove what was written into a run folder, and the folder if nothing else is in it."""
    _remove_earlier_run(path)
    with contextlib.suppress(OSError):  # other files are in it, and stay
        (path / SPANS_FOLDER).rmdir()
        path.rmdir()


def explain_unwritable(path: Path, error: OSError, *, in_code: bool = False) -> RunFolderError:
    """Return the error for a run folder that cannot be written; `in_code` as in `take_folder`."""
    return RunFolderError(
        f"run folder {path} cannot be written: {error.strerror or error}; "
        f"choose {'another output' if in_code else 'another with -o'}, free space on the disk or change the folder's rights"
    )


def _was_run_folder(path: Path) -> bool:
    """Return whether headrace wrote a run there: elsewhere a `report.html` or `errors.jsonl` is somebody else's."""
    try:
        return b'"headrace_version"' in own_file(path, path / RUN_JSON).read_bytes()
    except FileNotFoundError:
        # The first run.json may have met a full disk.
        return (path / SPANS_FOLDER).is_dir() or _was_supervised(path) or bool(_workers(path))


def _was_supervised(path: Path) -> bool:
    try:
        return b'"headrace.supervised/' in own_file(path, path / SUPERVISED_FILE).read_bytes()
    except FileNotFoundError:
        return False


def _workers(path: Path) -> list[Path]:
    """Return the run folders of supervised workers."""
    found = (worker for worker in path.glob("worker-[0-9]*-[0-9]*") if is_own_folder(path, worker) and worker.is_dir())
    return [worker for worker in found if _was_run_folder(worker)]


def _remove_earlier_run(path: Path) -> None:
    """Remove what headrace wrote into a run folder, and nothing else."""
    for worker in _workers(path):
        discard(worker)
    if _was_supervised(path):
        (path / SUPERVISED_FILE).unlink()
    for name in (RUN_JSON, ERRORS_FILE, profiling.FILE, layers.FILE, isolation.FILE, experiment.FILE, REPORT_FILE):
        (path / name).unlink(missing_ok=True)
    remove_resource_files(path)
    for folder, patterns in _PATTERNS.items():
        if not is_own_folder(path, path / folder):
            continue
        for pattern in patterns:
            for file in (path / folder).glob(pattern):
                file.unlink()
