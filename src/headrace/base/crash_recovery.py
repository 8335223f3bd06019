"""The state of a process that receives from a queue, in memory of the machine that outlives it.

How this works: a supervisor, or a run without one, has a folder of its own in `/dev/shm` and keeps a lock as long as it lives.
In the folder are the tables of what its workers have in flight, what is known about messages that were in flight at deaths
(`BlameBook`), and the name of the queue. Whoever opens the same queue looks for folders that nobody locks and takes them over,
by moving them into its own: what was in flight there is excused, and offered again at once.

    /dev/shm/headrace.UID / TOKEN / lock | queue | blame | WORKER-LIFE.table | TOKEN of one taken over / ...

In memory, because workers write their tables for each message and must never wait for a disk. So it is gone with the machine,
and with a container that has a `/dev/shm` of its own. Where it cannot be had all works on, and forgets with the process.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from headrace.base.in_flight import InFlight, InFlightTable, read_regular, read_table
from headrace.base.policies.blame import BlameBook, Death, Record

log = logging.getLogger(__name__)

#: Parent of the folders, one for each user.
SHARED_MEMORY = Path("/dev/shm")
#: A folder that nobody took over is removed after this time: SQS keeps no message longer.
KEPT_SECONDS = 14 * 86_400.0
#: The same for a folder whose process never opened its queue.
EMPTY_SECONDS = 60.0
#: First line of the file `queue`, before the boot and the queue's name. Folders of other versions are left alone.
_VERSION = "headrace-estate 1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FORGOTTEN = "what is in flight will not be known after a kill of this process: %s"
_UNSEEN = "a kill that nobody saw: its supervisor or machine ended with it"
#: Folders of this process: a lock of its own does not keep a process out.
_ours: set[str] = set()


class _Kept(msgspec.Struct):
    """The file `blame`."""

    records: dict[str, Record]
    counted: list[str] = []
    """Tables and folders whose deaths are in the records already, should they still be there."""


_kept_decoder = msgspec.msgpack.Decoder(_Kept)
#: The most bytes of the files `blame` and `queue`, which are read whole.
_BLAME_BYTES, _QUEUE_BYTES = 64 * 2**20, 2**16

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate["RecoveryFolder", _Params], _Result]


def _or_without(
    instead: Callable[[], _Result],
) -> Callable[[_Method[_Params, _Result]], _Method[_Params, _Result]]:
    """Let a method of the recovery folder return `instead()` if memory fails; logged once, so that no run ends by it."""

    def decorate(method: _Method[_Params, _Result]) -> _Method[_Params, _Result]:
        @functools.wraps(method)
        def call(self: RecoveryFolder, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            try:
                return method(self, *args, **kwargs)
            except (OSError, ValueError) as error:
                self.warn(error)
                return instead()

        return call

    return decorate


def _do_nothing() -> None:
    return None


@dataclass
class Recovered:
    """The content of a folder that was taken over."""

    folder: str
    book: BlameBook = field(default_factory=BlameBook)
    messages: list[InFlight] = field(default_factory=list)


def _find_nothing() -> list[Recovered]:
    return []


class RecoveryFolder:
    """The folder of this process. One thread at a time."""

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock
        self._has_warned = False
        self._counted: list[str] = []

    def warn(self, error: Exception) -> None:
        """Log that something is forgotten with the process; once, for it fails at each message or death from then on."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(_FORGOTTEN, error)

    @classmethod
    def create(cls) -> RecoveryFolder | None:
        """Return a new one; None where the machine gives no memory for it, which is logged."""
        try:
            return cls(*make_own_folder(SHARED_MEMORY))
        except OSError as error:
            log.warning(_FORGOTTEN, error)
            return None

    @_or_without(InFlightTable)
    def table(self, name: str) -> InFlightTable:
        """Return a table that outlives this process, or where there is no memory for that, one that does not."""
        return InFlightTable(file=self._table(name))

    @_or_without(_find_nothing)
    def serve(self, queue: str) -> list[Recovered]:
        """Note which queue it is, and take over what others left who served it."""
        label = f"{_VERSION}\n{_boot()}\n{queue}"
        try:
            (self._folder / "queue").write_text(label, errors="surrogateescape")
        except OSError as error:
            self.warn(error)  # what others left may be found all the same
        found = []
        for folder in _folders(self._folder.parent):
            if _queue_of(folder) == queue and _is_dead(folder):
                try:
                    folder.rename(self._folder / folder.name)
                except OSError:  # another was faster
                    continue
                found.append(self.read_recovered(folder.name))
        return found

    def read_recovered(self, name: str) -> Recovered:
        """Return the content of a folder that was taken over; empty if it cannot be read."""
        try:
            return _read(self._folder / name)
        except OSError as error:
            self.warn(error)
            return Recovered(name)

    @_or_without(_do_nothing)
    def keep(self, blame: BlameBook, counted: str = "") -> None:
        """Keep what is known, and remove the table, or the folder taken over, whose deaths are in it now.

        Where it cannot be kept they stay until it can be: whoever comes next counts them.
        """
        self._counted += [counted] if counted else []
        kept = _Kept(dict(blame.records), self._counted)
        written = self._folder / ".blame"
        written.write_bytes(msgspec.msgpack.encode(kept))
        written.replace(self._folder / "blame")
        while self._counted:
            self.drop(self._counted.pop())

    @_or_without(_do_nothing)
    def drop(self, name: str) -> None:
        """Remove the table of a worker that has ended, or a folder that was taken over."""
        self._table(name).unlink(missing_ok=True)
        shutil.rmtree(self._folder / name, ignore_errors=True)

    @_or_without(_do_nothing)
    def end(self, records: Mapping[str, Record]) -> None:
        """Leave nothing but what is known, if anything still matters."""
        try:
            if records:
                for table in self._folder.glob("*.table"):
                    table.unlink(missing_ok=True)
            else:
                shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            _ours.discard(self._folder.name)
            os.close(self._lock)

    def _table(self, name: str) -> Path:
        return self._folder / f"{name}.table"


def make_own_folder(parent: Path) -> tuple[Path, int]:
    """Make a folder of this process below a place of this user alone, and return it with the descriptor that locks it.

    What dead processes left there, and nobody needs any more, is removed.

    Raises:
        OSError: If it cannot be made, or the place is somebody else's.
    """
    root = _root(parent)
    _sweep(root)
    return _make_folder(root)


def _make_folder(root: Path) -> tuple[Path, int]:
    """Make a folder, and return it with the descriptor that locks it."""
    token = f"{os.getpid()}-{os.urandom(6).hex()}"
    making = root / f".{token}"
    making.mkdir(mode=0o700)
    lock = -1
    try:
        lock = os.open(making / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Of this process alone: children that it forks do not keep it, as they would with flock.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _ours.add(token)
        making.rename(root / token)
    except OSError:
        if lock >= 0:
            os.close(lock)
        shutil.rmtree(making, ignore_errors=True)
        raise
    return root / token, lock


def _root(parent: Path) -> Path:
    root = parent / f"headrace.{os.geteuid()}"
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{root} is not a folder of this user alone; remove it")
    return root


def _folders(root: Path) -> Iterator[Path]:
    for folder in sorted(root.iterdir()):
        if not folder.name.startswith(".") and folder.name not in _ours and _is_folder(folder):
            yield folder


def _is_folder(path: Path) -> bool:
    """Return whether it is a folder itself, not a link to one, which may lead anywhere and round in a circle."""
    return stat.S_ISDIR(path.lstat().st_mode)


def _sweep(root: Path) -> None:
    """Remove folders that are too old to be taken over."""
    for folder in _folders(root):
        with suppress(OSError):
            kept_seconds = KEPT_SECONDS if (folder / "queue").exists() else EMPTY_SECONDS
            if time.time() - folder.stat().st_mtime > kept_seconds and _is_dead(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _label(folder: Path) -> tuple[str, str]:
    """Return boot and queue of a folder; empty: it has none, or of another version."""
    try:
        content = read_regular(folder / "queue", _QUEUE_BYTES)
        version, boot, queue = content.decode(errors="surrogateescape").split("\n", 2)
    except (OSError, ValueError):
        return "", ""
    return (boot, queue) if version == _VERSION else ("", "")


def _queue_of(folder: Path) -> str:
    return _label(folder)[1]


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _read(folder: Path) -> Recovered:
    left = Recovered(folder.name)
    counted = _read_blame(folder, left.book)
    for file in sorted(folder.glob("*.table")):
        if file.stem in counted:
            continue
        try:
            messages = read_table(file)
        except (OSError, ValueError) as error:
            log.warning("what was in flight in a process that died is not known: %s", error)
            continue
        left.book.note_death(death_of(messages))
        left.messages += messages
    if _label(folder)[0] != _boot():
        left.messages = []  # their times are of another clock
    for inner in _folders(folder):
        if inner.name not in counted:
            deeper = _read(inner)
            left.book.learn(deeper.book.records)
            left.messages += deeper.messages
    return left


def _read_blame(folder: Path, book: BlameBook) -> list[str]:
    file = folder / "blame"
    try:
        kept = _kept_decoder.decode(read_regular(file, _BLAME_BYTES))
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        log.warning("%s is damaged or of another version of headrace: %s", file, error)
        return []
    book.learn(kept.records)
    return kept.counted


def death_of(messages: list[InFlight]) -> Death:
    """Return the death of a process whose cause is unknown: it blames no message."""
    return Death(
        _UNSEEN,
        False,
        [message.id for message in messages if message.in_work and not message.delivered],
        [message.id for message in messages if not message.in_work and not message.delivered],
    )
