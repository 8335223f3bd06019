"""The folder of a review: what is kept of answers, hour by hour, bounded in bytes and days.

    samples/HOUR-HOST-PID-CHANCE/   what one process keeps of one hour
        sample.json                 `ReviewSample`; replaced as a whole
        SHA256.jpg                  pictures, texts or originals, by their content
        open                        locked by the process as long as it writes here
    rounds/NNN.json                 `ReviewRound`
    verdicts.jsonl                  a `VerdictLine` each
    lock                            held by whoever makes room

How this works: each process writes a folder of its own and nobody else's, so that workers need not agree on anything; what they
keep is put together when it is read. Whoever finds the folder too large makes room, under the lock, in samples that no process
writes any more: what is older than the days allowed goes; then the largest sample is halved, again and again, and when no
sample can be smaller, the oldest goes. A half of a sample is a sample, so estimates stay right.

Pictures may show people, and answers name them: folders are for their owner alone (0700, files 0600).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import RunFolderError
from headrace.base.in_flight import read_regular
from headrace.monitor.review.hour_sample import halve_sample
from headrace.runs.formats.review import ReviewSample, SampledAnswer
from headrace.runs.run_folder import replace_file

HOUR_SECONDS = 3600
#: Bytes of a document that is read: what is larger was not written by us.
MOST_DOCUMENT = 1 << 28
_SAMPLES, _DOCUMENT, _OPEN = "samples", "sample.json", "open"


def open_folder(path: Path) -> Path:
    """Return the folder of a review, made if it does not exist.

    Raises:
        RunFolderError: If it cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (path / _SAMPLES).mkdir(exist_ok=True, mode=0o700)
        if not os.access(path / _SAMPLES, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise RunFolderError(
            f"review folder {path} cannot be written: {error.strerror}; name another with --review DIR"
        ) from None
    return path


class SampleWriter:
    """Writes what one process keeps of one hour. Not thread-safe.

    Args:
        folder: Of the review.
        began_unix_seconds: Of the hour's first answer.

    Raises:
        OSError: If it cannot be made.
    """

    def __init__(self, folder: Path, began_unix_seconds: float) -> None:
        hour = time.strftime("%Y%m%dT%HZ", time.gmtime(began_unix_seconds))
        host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())[:40]
        self.id = f"{hour}-{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self.num_bytes = 0
        self._path = folder / _SAMPLES / self.id
        self._users: dict[str, int] = {}
        self._path.mkdir(mode=0o700)
        self._held = (self._path / _OPEN).open("wb")
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def put(self, content: bytes, suffix: str) -> str:
        """Keep a file, and return its name; call `drop` as often as this.

        Raises:
            OSError: If it cannot be written.
        """
        name = hashlib.sha256(content).hexdigest() + suffix
        if not self._users.get(name):
            replace_private(self._path / name, content)
            self.num_bytes += len(content)
        self._users[name] = self._users.get(name, 0) + 1
        return name

    def drop(self, items: Iterable[SampledAnswer]) -> None:
        """Remove the files of items, unless others have the same."""
        for item in items:
            if not item.file or not self._users.get(item.file):
                continue
            self._users[item.file] -= 1
            if not self._users[item.file]:
                self.num_bytes -= item.num_bytes
                with contextlib.suppress(OSError):
                    (self._path / item.file).unlink()

    def write(self, sample: ReviewSample) -> None:
        """Replace the document.

        Raises:
            OSError: If it cannot be written; the old one is untouched.
        """
        replace_private(self._path / _DOCUMENT, encode_document(sample, or_text=True))

    def close(self) -> None:
        """Let others change what was written."""
        self._held.close()


def replace_private(path: Path, content: bytes) -> None:
    """Write a file for its owner alone; raises OSError if that fails."""
    replace_file(path, content)
    path.chmod(0o600)


def read_samples(folder: Path) -> tuple[list[ReviewSample], list[str]]:
    """Return the samples of a folder, the oldest first, and what was wrong with those that cannot be read."""
    samples, problems = [], []
    for path in _list_samples(folder):
        try:
            samples.append(_read(path))
        except FileNotFoundError:  # begun, and nothing written yet; or just removed
            continue
        except (OSError, msgspec.DecodeError) as error:
            problems.append(f"{path / _DOCUMENT} cannot be read ({error!s:.200}); it is left out")
    return sorted(samples, key=lambda one: (one.began_unix_seconds, one.id)), problems


def find_file(folder: Path, segment: str, name: str) -> Path | None:
    """Return a kept file; None if it is gone, is no regular file, or the names are none of ours."""
    if not _is_name(segment) or not _is_name(name):
        return None
    path = folder / _SAMPLES / segment / name
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode) and not path.parent.is_symlink():  # a link leads to somebody else's
            return path
    return None


def make_room(folder: Path, max_bytes: int, max_days: float, now_unix_seconds: float) -> int:
    """Remove what is too old or too much, and return by how many bytes the folder is still too large.

    Args:
        folder: Of the review.
        max_bytes: Of all samples.
        max_days: Since their last answer.
        now_unix_seconds: The time.
    """
    with _locked(folder) as is_mine:
        if not is_mine:
            return 0
        sizes = {path: _size_of(path) for path in _list_samples(folder)}
        closed = [path for path in sizes if _is_closed(path)]
        for path in list(closed):
            if _last_of(path) < now_unix_seconds - max_days * 86_400:
                _remove(path, sizes, closed)
        while sum(sizes.values()) > max_bytes and closed:
            largest = max(closed, key=lambda path: sizes[path])
            if not _halve(largest):
                _remove(min(closed, key=_last_of), sizes, closed)
            else:
                sizes[largest] = _size_of(largest)
        return max(0, sum(sizes.values()) - max_bytes)


def _remove(path: Path, sizes: dict[Path, int], closed: list[Path]) -> None:
    shutil.rmtree(path, ignore_errors=True)
    del sizes[path]
    closed.remove(path)


def _halve(path: Path) -> bool:
    """Return whether a sample could be made smaller. It keeps its age: a half of an old sample is as old."""
    try:
        half, dropped = halve_sample(_read(path))
        if not dropped:
            return False
        last = _last_of(path)
        replace_private(path / _DOCUMENT, encode_document(half, or_text=True))
        os.utime(path / _DOCUMENT, (last, last))
    except (OSError, msgspec.DecodeError):
        return False
    for name in {item.file for item in dropped} - {item.file for item in half.items} - {""}:
        if _is_name(name):
            (path / name).unlink(missing_ok=True)
    return True


def _list_samples(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in (folder / _SAMPLES).iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _read(path: Path) -> ReviewSample:
    return msgspec.structs.replace(
        decode_document(read_regular(path / _DOCUMENT, MOST_DOCUMENT), ReviewSample), id=path.name
    )


def _size_of(path: Path) -> int:
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0


def _last_of(path: Path) -> float:
    """Return when a sample was last written, Unix seconds; now if that is not known."""
    for name in (_DOCUMENT, _OPEN):
        with contextlib.suppress(OSError):
            return (path / name).stat().st_mtime
    return time.time()


def _is_closed(path: Path) -> bool:
    """Return whether no process writes a sample: its lock goes with it."""
    try:
        with open(os.open(path / _OPEN, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return (path / _DOCUMENT).exists()
    except OSError:
        return False


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Give whether nobody else is making room."""
    try:
        file = open(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)  # noqa: SIM115 - closed below
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _is_name(text: str) -> bool:
    return bool(text) and "/" not in text and "\0" not in text and not text.startswith(".")
