"""The folder that keeps incidents: bounded in number and bytes, and one incident for one cause and window."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.base.errors import RunFolderError
from headrace.runs.formats.incident import FILE

MOST_INCIDENTS, MOST_BYTES = 50, 2 * 2**30
_NAME = re.compile(r"\d{8}T\d{6}Z-[a-z]+(-\d+)?")
#: A folder that is being written has this before its name until it is whole.
_UNFINISHED, _UNFINISHED_SECONDS = ".", 3600.0


class IncidentStore:
    """A folder with incidents.

    Args:
        path: Made if it does not exist.
        most: Incidents that are kept.
        most_bytes: That these take together.

    Raises:
        RunFolderError: If the folder cannot be made.
    """

    def __init__(self, path: Path, *, most: int = MOST_INCIDENTS, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self._most, self._most_bytes = most, most_bytes
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"folder {path} for incidents cannot be made: {error.strerror}; name another with --incidents"
            ) from error

    def incidents(self) -> list[Path]:
        """Return the incidents, oldest first."""
        written = {path: _written_ns(path / FILE) for path in self.path.iterdir() if _NAME.fullmatch(path.name)}
        return sorted((path for path, at in written.items() if at), key=lambda path: (written[path], path.name))

    def claim(self, kind: str, window_seconds: float) -> bool:
        """Return whether the caller is to write an incident of this kind; not, if one was written or claimed in the window.

        Raises:
            OSError: If the folder cannot be written.
        """
        claimed = self._claimed(kind)
        with self._locked():
            if self._is_known(kind, window_seconds) or abs(time.time() - _written_ns(claimed) / 1e9) < window_seconds:
                return False
            claimed.touch()
            return True

    @contextlib.contextmanager
    def new(self, kind: str, *, window_seconds: float = 0.0) -> Iterator[Path | None]:
        """Give a folder to write, which gets its name when it is left without an error; None if there is such an incident.

        Args:
            kind: What triggered it.
            window_seconds: An incident of this kind that is younger counts as the same one.

        Raises:
            RunFolderError: If the folder cannot be written.
        """
        try:
            with self._locked():
                if window_seconds and self._is_known(kind, window_seconds):
                    yield None
                    return
                final = self._free_name(kind)
                making = self.path / f"{_UNFINISHED}{final.name}"
                making.mkdir()
        except OSError as error:
            raise RunFolderError(f"an incident cannot be written to {self.path}: {error.strerror or error}") from error
        try:
            yield making
            making.replace(final)
        except BaseException as error:
            shutil.rmtree(making, ignore_errors=True)
            with contextlib.suppress(OSError):  # another may write it
                self._claimed(kind).unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise RunFolderError(
                    f"{final} cannot be written: {error.strerror or error}; free space on the disk"
                ) from error
            raise
        with contextlib.suppress(OSError):  # it is written; the next one makes room
            self._remove_oldest(but=final)

    def _claimed(self, kind: str) -> Path:
        return self.path / f".{kind}.claimed"

    def _is_known(self, kind: str, window_seconds: float) -> bool:
        """Return whether there is one, or one is being written."""
        for path in self.path.iterdir():
            name = path.name.removeprefix(_UNFINISHED)
            if (
                _NAME.fullmatch(name)
                and name.split("-")[1] == kind
                and abs(time.time() - _written_ns(path) / 1e9) < window_seconds  # the clock may have been set back
            ):
                return True
        return False

    def _free_name(self, kind: str) -> Path:
        stem = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{kind}"
        for number in range(1, 1000):
            path = self.path / (stem if number == 1 else f"{stem}-{number}")
            if not path.exists() and not (self.path / f"{_UNFINISHED}{path.name}").exists():
                return path
        raise OSError(f"{stem}-999 exists already")

    def _remove_oldest(self, but: Path) -> None:
        for path in self.path.glob(f"{_UNFINISHED}*-*"):  # whose writer was killed
            if _NAME.fullmatch(path.name[1:]) and time.time() - _written_ns(path) / 1e9 > _UNFINISHED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        known = self.incidents()
        sizes = {path: _size(path) for path in known}
        while (
            known
            and known[0] != but
            and (len(known) > self._most or sum(sizes[path] for path in known) > self._most_bytes)
        ):
            shutil.rmtree(known.pop(0), ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        file = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _written_ns(path: Path) -> int:
    """Return when a file or folder was written; 0 if it is gone, as another process may have removed it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.lstat().st_size
    return found
