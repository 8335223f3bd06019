"""The folder of a drift monitor, which several processes share.

    DIR/
      baseline.json          what is usual; made by `headrace monitor drift learn`
      windows/NNNNNN.jsonl   merged windows, one a line; the oldest files are removed
      parts/*.json           what processes have counted and nobody has merged yet
      scores.json            where things stand: `headrace.drift/1`
      judge.lock             locked by the process that merges and judges

How this works. Each process writes parts. The one that has the lock reads parts, removes them, merges them into windows, and
judges; when it dies the kernel gives the lock to another. Only one writes windows, so they have one order, and what `show`
makes of them is what the judge made. A part is a file that appears whole. Where a disk is full, the caller gets the OSError,
and counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import SettingsError
from headrace.base.in_flight import read_regular
from headrace.base.lines import append_line
from headrace.runs.formats.drift import (
    BASELINE_SCHEMA,
    WINDOW_SCHEMA,
    DriftBaseline,
    DriftDocument,
    DriftWindow,
)
from headrace.runs.run_folder import replace_file

BASELINE_FILE, SCORES_FILE, LOCK_FILE = "baseline.json", "scores.json", "judge.lock"
WINDOWS_FOLDER, PARTS_FOLDER = "windows", "parts"
#: Windows of a file, and files that are kept: weeks of windows, tens of megabytes.
FILE_WINDOWS, MOST_FILES = 500, 8
#: Parts that may wait for a judge; a process that finds more writes none.
MOST_PARTS = 1_000
#: Of a part; larger ones were not written by headrace.
_MOST_BYTES = 8_000_000
#: Of all other files.
_MOST_FILE_BYTES = 1 << 28

_NUMBER = re.compile(r"[0-9]{1,18}")
_Document = TypeVar("_Document")


class DriftFolder:
    """One folder.

    Args:
        path: Made where it does not exist, if `make` is given.
        make: Whether it is going to be written.

    Raises:
        SettingsError: If it cannot be used.
    """

    def __init__(self, path: str | Path, *, make: bool = False) -> None:
        self.path = Path(path)
        self._numbers = itertools.count(1)
        self._lock: IO[bytes] | None = None
        if make:
            self._make()
        elif not self.path.is_dir():
            raise SettingsError(
                f"{self.path} is not a folder; expected one that `headrace run --drift DIR` wrote, or `headrace serve`"
            )

    def _make(self) -> None:
        try:
            for folder in (WINDOWS_FOLDER, PARTS_FOLDER):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"--drift {self.path} cannot be made: {error.strerror}; name a folder that this user may write"
            ) from error
        if not os.access(self.path, os.W_OK):
            raise SettingsError(f"--drift {self.path} cannot be written; name a folder that this user may write")

    def baseline(self) -> DriftBaseline | None:
        """Return what is usual; None if nothing was learnt yet.

        Raises:
            SettingsError: If the file is damaged.
        """
        return read_baseline(self.path / BASELINE_FILE) if (self.path / BASELINE_FILE).exists() else None

    def write_baseline(self, baseline: DriftBaseline) -> None:
        """Replace what is usual; raises SettingsError if it cannot be written."""
        try:
            replace_file(self.path / BASELINE_FILE, encode_document(baseline))
        except OSError as error:
            raise SettingsError(f"{self.path / BASELINE_FILE} cannot be written: {error.strerror}") from error

    def baseline_mark(self) -> tuple[int, int] | None:
        """Return what changes when the baseline is replaced; None without one."""
        try:
            status = (self.path / BASELINE_FILE).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def scores(self) -> DriftDocument | None:
        """Return where things stand; None if nobody has judged yet, or the file is damaged."""
        try:
            return decode_document(_read(self.path / SCORES_FILE), DriftDocument)
        except (OSError, msgspec.DecodeError):
            return None

    def write_scores(self, document: DriftDocument) -> None:
        """Replace where things stand; raises OSError."""
        replace_file(self.path / SCORES_FILE, encode_document(document))

    def windows(self) -> tuple[list[DriftWindow], int]:
        """Return the merged windows in their order, and how many lines could not be read."""
        found: list[DriftWindow] = []
        damaged = 0
        for file in self._window_files():
            try:
                lines = _read(file).splitlines()
            except OSError:
                damaged += 1
                continue
            for line in lines:
                window = _decode(line, DriftWindow)
                if window is None or window.schema != WINDOW_SCHEMA:
                    damaged += 1
                else:
                    found.append(window)
        return found, damaged

    def add_window(self, window: DriftWindow) -> None:
        """Append a merged window, and remove the oldest file beyond the bound; raises OSError. For the judge alone."""
        files = self._window_files()
        number = int(files[-1].stem) if files else 1
        file = self.path / WINDOWS_FOLDER / f"{number:06d}.jsonl"
        if files and _read(file).count(b"\n") >= FILE_WINDOWS:
            file = self.path / WINDOWS_FOLDER / f"{number + 1:06d}.jsonl"
            for old in files[: max(0, len(files) + 1 - MOST_FILES)]:
                old.unlink(missing_ok=True)
        append_line(file, encode_document(window))

    def _window_files(self) -> list[Path]:
        return sorted(file for file in (self.path / WINDOWS_FOLDER).glob("*.jsonl") if _NUMBER.fullmatch(file.stem))

    def write_part(self, part: DriftWindow) -> bool:
        """Leave what was counted for the judge, and return whether there was room; raises OSError."""
        folder = self.path / PARTS_FOLDER
        if sum(1 for _ in os.scandir(folder)) > MOST_PARTS:
            return False
        name = f"{part.ended:017.6f}-{socket.gethostname()[:40]}-{os.getpid()}-{next(self._numbers)}.json"
        replace_file(folder / name, encode_document(part))
        return True

    def take_parts(self) -> Iterator[DriftWindow]:
        """Yield what processes left, in the order of time, and remove it. For the judge alone."""
        for file in sorted((self.path / PARTS_FOLDER).glob("[!.]*.json")):
            try:
                content = _read(file) if file.stat().st_size <= _MOST_BYTES else b""
                file.unlink()
            except OSError:
                continue
            part = _decode(content, DriftWindow)
            if part is not None:
                yield part

    def is_one(self) -> bool:
        """Return whether anything of a drift monitor is in the folder."""
        return any((self.path / name).exists() for name in (WINDOWS_FOLDER, PARTS_FOLDER, BASELINE_FILE))

    def waiting(self) -> list[DriftWindow]:
        """Return the parts that nobody has merged yet; they stay."""
        found = []
        for file in sorted((self.path / PARTS_FOLDER).glob("[!.]*.json")):
            with contextlib.suppress(OSError):  # merged meanwhile
                part = _decode(read_regular(file, _MOST_BYTES, follow=True), DriftWindow)
                found += [] if part is None else [part]
        return found

    def try_to_judge(self) -> bool:
        """Return whether this process is the judge: it becomes it if there is no other."""
        if self._lock is not None:
            return True
        try:
            file = open(  # noqa: SIM115 - held until `leave`
                os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0
            )
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._lock = file
        return True

    def leave(self) -> None:
        """Let another process judge."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_baseline(file: Path) -> DriftBaseline:
    """Return the baseline in a file.

    Raises:
        SettingsError: If it cannot be read, is damaged or newer than this headrace.
    """
    try:
        baseline = decode_document(_read(file), DriftBaseline)
    except OSError as error:
        raise SettingsError(f"the baseline {file} cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"the baseline {file} is damaged ({error}); learn it again: headrace monitor drift learn {file.parent}"
        ) from error
    if baseline.schema != BASELINE_SCHEMA:
        raise SettingsError(
            f"the baseline {file} has schema {baseline.schema!r}; this headrace reads {BASELINE_SCHEMA!r}: learn it again, or "
            "use the headrace that wrote it"
        )
    return baseline


def _read(file: Path) -> bytes:
    return read_regular(file, _MOST_FILE_BYTES, follow=True)


def _decode(content: bytes, kind: type[_Document]) -> _Document | None:
    try:
        return decode_document(content, kind)
    except msgspec.DecodeError:
        return None
