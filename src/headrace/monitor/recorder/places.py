"""Where recordings are: those of running processes, and those that processes left behind when they were killed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from headrace.base.errors import RunFolderError
from headrace.monitor.recorder.recording import Identity, explain_unread, read_identity
from headrace.monitor.recorder.ring import folders_in, own_root, remove_recording

#: Parent of the folders of all users.
SHARED_MEMORY = Path("/dev/shm")
#: Of runs whose processes are dead, with all their workers: the newest are kept, for so long.
_MOST_DEAD, _KEPT_SECONDS = 4, 86_400.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def make_place() -> Path:
    """Return the name of a new recording of this process, and remove what is too old.

    Raises:
        OSError: If there is no memory for it on this machine.
    """
    root = own_root(SHARED_MEMORY)
    _sweep(root)
    return root / f"{os.getpid()}-{os.urandom(6).hex()}"


def list_recordings() -> list[tuple[Path, Identity]]:
    """Return this user's recordings that can be read, oldest first."""
    found = [(folder, read_identity(folder)) for folder in _folders()]
    return [(folder, identity) for folder, identity in found if identity is not None]


def list_unread(process: str | None = None) -> list[str]:
    """Return why each of this user's other recordings cannot be read, oldest first; those of a process, if one is given."""
    folders = [folder for folder in _folders() if process is None or folder.name.startswith(f"{process}-")]
    return [why for folder in folders if (why := explain_unread(folder))]


def _folders() -> list[Path]:
    return list(folders_in(SHARED_MEMORY / f"headrace-recorder.{os.geteuid()}"))


def find_recordings(name: str | None) -> list[tuple[Path, Identity]]:
    """Return the recordings that a person means.

    Args:
        name: A process id, of the run or its supervisor; the folder of a recording; None: those of every run that goes on, or,
            where none does, of the one that ended last.

    Raises:
        RunFolderError: If there is none.
    """
    if name is not None and "/" in name:
        identity = read_identity(Path(name))
        if identity is None:
            raise RunFolderError(
                explain_unread(Path(name))
                or f"{name} is no recording: expected a folder such as {SHARED_MEMORY}/headrace-recorder.UID/PID-..."
            )
        return [(Path(name), identity)]
    known = list_recordings()
    if name is None:
        running = [one for one in known if is_running(one[1])]
        found = running or [one for one in known if _group(one[1]) == _group(known[-1][1])]
    else:
        found = [one for one in known if name in (str(one[1].process), str(one[1].supervisor))]
    if not found and (unread := list_unread(name)):
        raise RunFolderError(unread[-1])
    if not found:
        pids = ", ".join(sorted({str(identity.process) for _, identity in known})) or "none"
        what = "no run records" if name is None else f"no run of process {name} records"
        raise RunFolderError(
            f"{what} (recordings of this user: {pids}). Start runs with --recorder 8MB or --incidents DIR; a recording is "
            "removed when its run ends orderly"
        )
    return found


def is_running(identity: Identity) -> bool:
    """Return whether the process of a recording still runs."""
    return identity.boot == read_boot() and identity.process_started == read_start(identity.process) != 0


def read_boot() -> str:
    """Return which boot of the machine this is; empty where the system does not tell."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def read_start(process: int) -> int:
    """Return when a process began, by the kernel's ticks; 0 if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
        return int(text[text.rindex(")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _group(identity: Identity) -> tuple[str, int]:
    return identity.boot, identity.supervisor or identity.process


def _is_left_behind(folder: Path, age: float) -> bool:
    """Return whether nobody writes a recording that cannot be read: its process may be of another version, or just begin."""
    process = folder.name.partition("-")[0]
    runs = process.isdecimal() and read_start(int(process)) != 0
    return age >= 60.0 and not runs


def _sweep(root: Path) -> None:
    """Remove recordings of dead processes: all that are old, and of the others all but those of the newest runs."""
    dead: list[tuple[Path, float, tuple[str, int] | None]] = []
    for folder in folders_in(root):
        identity = read_identity(folder)
        with suppress(OSError):  # another process that begins removed it
            age = abs(time.time() - folder.stat().st_mtime)
            if _is_left_behind(folder, age) if identity is None else not is_running(identity):
                dead.append((folder, age, _group(identity) if identity is not None else None))
    kept = list(dict.fromkeys(group for _, _, group in reversed(dead)))[:_MOST_DEAD]
    for folder, age, group in dead:
        if group not in kept or age > _KEPT_SECONDS:
            remove_recording(folder)
