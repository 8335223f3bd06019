"""The folder through which commands and workers agree on a canary.

    state.json       what is to be done; written by commands and by workers, under the lock, always as a whole
    seen-WORKER.json what one worker saw; its sum decides, also of workers that have ended
    call-WORKER      one byte: how many calls of the canary's model are under way in a worker; who died within one, died of it
    feedback.jsonl   what users said of answers to a worker that did not give them; who did counts it
    lock             held while the state is changed

All is small. Workers of one machine share the folder, or those of many, where it lies on a file system that all of them see and
that passes locks on. A number of a process says nothing there, so a worker that lives keeps its `call-` file locked, and each
has a name that nobody else has.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import RunFolderError, SettingsError
from headrace.base.in_flight import open_regular, read_regular
from headrace.base.plan import Plan
from headrace.base.policies.canary import CanaryPolicy, Seen
from headrace.runs.formats.canary import CanaryState
from headrace.runs.run_folder import replace_file


class _SeenFile(msgspec.Struct, kw_only=True):
    id: str
    seen: Seen


_FEEDBACK = "feedback.jsonl"
#: Of any other file; larger ones were not written by headrace.
_MOST_BYTES = 16 * 2**20
#: Of feedback that is passed on, in one canary's life: more is somebody's attack.
_MOST_FEEDBACK_BYTES = 4 * 1024 * 1024


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user says of an answer."""

    id: str
    """Of its job."""
    good: bool


class CanaryFolder:
    """Reads and writes it.

    Args:
        path: Of the folder.
        must_exist: Refuse to make it: no run has it.

    Raises:
        RunFolderError: If it cannot be made, or does not exist and must.
    """

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        self.path = path
        self._version: tuple[int, int] | None = None
        self._state: CanaryState | None = None
        self._heard = _Heard()
        host = re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename)[:80]
        #: Of this worker, among all that have the folder.
        self.worker = f"{host}-{os.getpid()}-{os.urandom(4).hex()}"
        if must_exist and not path.is_dir():
            raise RunFolderError(
                f"there is no canary folder {path}; expected the one of a run: start that with --canary DIR, and name DIR with "
                "--at"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"canary folder {path} cannot be made: {error.strerror}; name another") from None

    def read(self) -> CanaryState | None:
        """Return the state; None if there was never a canary.

        Raises:
            RunFolderError: If the file cannot be read.
        """
        file = self.path / "state.json"
        try:
            found = file.stat()
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._version:  # it is looked at many times a second
                self._state = _decode(read_regular(file, _MOST_BYTES, follow=True))
                self._version = version
            return self._state
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise RunFolderError(
                f"{file} is no state of a canary ({error}); the run answers without a canary: headrace canary rollback --at "
                f"{self.path} makes the folder good again"
            ) from None

    def write(self, state: CanaryState) -> None:
        """Replace the state; hold the lock."""
        replace_file(self.path / "state.json", encode_document(state, indent=True))

    def start(
        self,
        plan: Plan,
        policy: CanaryPolicy,
        *,
        why: str = "",
        record: Callable[[CanaryState], object] = lambda state: None,
    ) -> CanaryState:
        """Start a canary with the models and the batches of a Plan, and return its state.

        Args:
            plan: The candidate.
            policy: How it is judged.
            why: The user's reason.
            record: Called with the state before any run can see it: so what a run records of this canary comes later.

        Raises:
            SettingsError: If there is one already.
        """
        now, table = time.time(), plan.as_table()
        with self.locked():
            present = self.read()
            if present is not None and present.status != "rolled back":
                raise SettingsError(
                    f"canary {present.id} in {self.path} is {present.status}; expected none: roll it back, or, if it was "
                    f"promoted, start the run again with its Plan and name another folder"
                )
            self.forget_seen()
            state = CanaryState(
                id=f"c{int(now * 1000):x}", status="running", model=table["model"], models=table.get("models", {}),
                batches={name: stage.batch for name, stage in plan.stages.items() if stage.batch is not None},
                policy=policy, step=0, since_unix_seconds=now,
            ).done("started", now, why, "user")  # fmt: skip
            record(state)
            self.write(state)
        return state

    def replace_damaged(self, why: str) -> CanaryState:
        """Put that of a canary that was rolled back in the place of a state that cannot be read; hold the lock."""
        now, file = time.time(), self.path / "state.json"
        file.replace(self.path / "state-damaged.json")
        state = CanaryState(
            id=f"c{int(now * 1000):x}",
            status="running",
            model={},
            policy=CanaryPolicy(),
            step=0,
            since_unix_seconds=now,
        ).done("rolled back", now, why, "user")
        self.write(state)
        return state

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from changing the state; raises RunFolderError."""
        try:
            descriptor = open_regular(self.path / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise RunFolderError(f"{self.path / 'lock'} cannot be used: {error.strerror}") from None
        with open(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def write_seen(self, canary: str, seen: Seen) -> None:
        """Note what this worker saw of a canary."""
        content = encode_document(_SeenFile(id=canary, seen=seen))
        replace_file(self.path / f"seen-{self.worker}.json", content)

    def sum_seen(self, canary: str) -> Seen:
        """Return what all workers saw of a canary."""
        total = Seen()
        for file in sorted(self.path.glob("seen-*.json")):
            with contextlib.suppress(OSError, msgspec.DecodeError):  # of another version, or just gone
                found = decode_document(read_regular(file, _MOST_BYTES), _SeenFile)
                if found.id == canary:
                    total = total.plus(found.seen)
        return total

    def forget_seen(self) -> None:
        """Remove what was seen of earlier canaries."""
        for file in (*self.path.glob("seen-*.json"), self.path / _FEEDBACK):
            file.unlink(missing_ok=True)

    def pass_on(self, said: Feedback) -> None:
        """Let all workers hear of feedback; raises OSError."""
        descriptor = open_regular(self.path / _FEEDBACK, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(descriptor, "ab", buffering=0) as file:  # one write: lines of others are not torn
            num_bytes = os.fstat(descriptor).st_size
            if num_bytes >= _MOST_FEEDBACK_BYTES:
                says = f"it has {num_bytes:,} bytes, the most that are taken for one canary"
                raise OSError(errno.EFBIG, says, str(self.path / _FEEDBACK))
            file.write(encode_document(said) + b"\n")

    def hear(self) -> list[Feedback]:
        """Return what was passed on since the last call; raises OSError."""
        found = []
        for line in self._heard.read_lines(self.path / _FEEDBACK):
            with contextlib.suppress(msgspec.DecodeError):
                found.append(decode_document(line, Feedback))
        return found

    def find_others(self) -> list[str]:
        """Return the other workers whose runs have this folder now."""
        return [file.name.removeprefix("call-") for file in self._marks() if _is_locked(file)]

    def find_dead(self) -> list[str]:
        """Return the workers that died within a call of the canary's model, each once."""
        dead = []
        for file in self._marks():
            with contextlib.suppress(OSError), _lock_at_once(file):
                content = read_regular(file, _MOST_BYTES)
                file.unlink()
                if content.strip(b"\0"):
                    dead.append(file.name.removeprefix("call-"))
        return dead

    def _marks(self) -> list[Path]:
        return [file for file in self.path.glob("call-*") if file.name != f"call-{self.worker}"]


def _decode(content: bytes) -> CanaryState:
    state = decode_document(content, CanaryState)
    if not state.steps or not 0 <= state.step < len(state.policy.shares):
        raise msgspec.ValidationError(
            f"step {state.step} of {len(state.policy.shares)}, {len(state.steps)} things done"
        )
    return state


class _Heard:
    """How far a file was read that others write to. It stays open, so that its successor cannot have its number."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._offset = 0
        self._close: Callable[[], object] = lambda: None

    def read_lines(self, path: Path) -> list[bytes]:
        """Return the whole lines since the last call, of another file than then all; raises OSError."""
        if self._descriptor is None or not _is_at(path, self._descriptor):
            self._close()
            self._descriptor, self._offset = None, 0
            try:
                self._descriptor = open_regular(path, os.O_RDONLY)
            except FileNotFoundError:
                return []
            self._close = weakref.finalize(self, os.close, self._descriptor)
        content = os.pread(self._descriptor, _MOST_BYTES, self._offset)
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _lock_at_once(file: Path) -> Iterator[None]:
    """Hold a worker's file, which means that it is dead; raises OSError if it is not, or the file is gone."""
    descriptor = open_regular(file, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_locked(file: Path) -> bool:
    try:
        with _lock_at_once(file):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


class CallMark:
    """Entered around calls of a canary's model; thread-safe. What it writes outlives the process."""

    def __init__(self, folder: CanaryFolder) -> None:
        self._path = folder.path / f"call-{folder.worker}"
        # It has another name until it is locked: one that is not was left by a worker that is dead.
        unlocked = folder.path / f".call-{folder.worker}"
        with unlocked.open("xb+") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            file.truncate(1)
            self._byte = mmap.mmap(file.fileno(), 1)  # has the file open, and so keeps the lock
        unlocked.rename(self._path)
        self._num = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *_: object) -> None:
        self._count(-1)

    def close(self) -> None:
        """Remove the file: this worker ends orderly."""
        self._path.unlink(missing_ok=True)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num += change
            self._byte[0] = min(self._num, 255)
