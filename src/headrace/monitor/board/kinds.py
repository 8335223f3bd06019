"""What the board finds, by what lies in a folder or at the beginning of a file: one entry of `KINDS` each."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from headrace.base.in_flight import open_regular
from headrace.ledger.database import LEDGER
from headrace.monitor.board.reading import (
    LOOP_FILE,
    read_canary,
    read_comparison,
    read_drift,
    read_history,
    read_incident,
    read_ledger,
    read_loop,
    read_review,
    read_run_record,
    read_workers,
)
from headrace.monitor.board.records import Record
from headrace.monitor.history.store import HISTORY
from headrace.runs.file_names import RUN_JSON, SPANS_FOLDER, SUPERVISED_FILE
from headrace.runs.formats.incident import FILE as INCIDENT_FILE

#: Where SQLite keeps the number of the program that a file belongs to.
_NUMBER_AT, _SQLITE = 68, b"SQLite format 3\x00"
#: Our documents begin with their schema.
_HEAD_BYTES = 128


@dataclass(frozen=True, slots=True)
class Version:
    """Of a thing that was found; equal ones are of the same content."""

    at: float
    """When it was last changed, Unix seconds."""
    files: tuple[tuple[int, int, int], ...] = ()
    """(number, time in ns, bytes) of all that it is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of thing."""

    name: str
    """As people call it."""
    read: Callable[[Path, str], Record]
    """Returns it, given where it is and what it is called; raises what the board shows as its trouble."""
    marks: Set[str] = frozenset()
    """Names that its folder holds; empty: it is a file."""
    application_id: int = 0
    """Of SQLite files."""
    schemas: Set[bytes] = frozenset()
    """Of JSON files."""
    changing: Sequence[str] = ()
    """What changes in its folder besides the folder itself and its marks, as globs."""
    has_more: bool = False
    """Whether other things may lie below."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return bool(self.marks)

    def version(self, path: Path) -> Version:
        """Return what changes when anything that is read of it does; raises OSError if it is gone."""
        found = [path.stat()]  # of a folder: it changes too when a file in it is replaced
        for file in self._list_changing(path):
            with contextlib.suppress(OSError):  # not written yet, or just removed
                found.append(file.stat())
        marks = tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)
        return Version(max(one.st_mtime for one in found), marks)

    def _list_changing(self, path: Path) -> list[Path]:
        if not self.is_folder:  # what a writer of SQLite that is at work has added stands beside the file
            return [path.with_name(f"{path.name}-wal")] if self.application_id else []
        found = (sorted(path.glob(pattern)) for pattern in self.changing)
        return [*(path / mark for mark in sorted(self.marks)), *itertools.chain.from_iterable(found)]

    def is_file(self, name: str, head: bytes) -> bool:
        """Return whether a file is one of this kind, by its beginning."""
        if self.application_id:
            number = self.application_id.to_bytes(4, "big")
            return head.startswith(_SQLITE) and head[_NUMBER_AT : _NUMBER_AT + 4] == number
        return name.endswith(".json") and any(schema in head for schema in self.schemas)


def may_be_ours(name: str) -> bool:
    """Return whether the beginning of a file is worth reading, by its name."""
    return name.endswith((".sqlite", ".db", ".sqlite3", ".json"))


def read_head(path: str) -> bytes:
    """Return the beginning of a file, as much as tells its kind; nothing if it cannot be read."""
    try:
        with open(open_regular(Path(path), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


#: The first that fits counts.
KINDS = (
    Kind(name="incident", marks={RUN_JSON, INCIDENT_FILE}, read=read_incident),
    Kind(name="run", marks={RUN_JSON}, read=read_run_record, changing=(SPANS_FOLDER,)),
    Kind(name="workers", marks={SUPERVISED_FILE}, read=read_workers, has_more=True),
    Kind(name="loop", marks={LOOP_FILE, "runs"}, read=read_loop, has_more=True),
    Kind(name="drift", marks={"scores.json", "windows"}, read=read_drift),
    Kind(name="drift", marks={"baseline.json", "windows"}, read=read_drift, changing=("scores.json",)),
    Kind(
        name="review", marks={"samples", "lock"}, read=read_review,
        changing=("samples/*", "rounds", "verdicts.jsonl"),
    ),
    Kind(name="canary", marks={"state.json", "lock"}, read=read_canary),
    Kind(name="ledger", application_id=LEDGER.application_id, read=read_ledger),
    Kind(name="history", application_id=HISTORY.application_id, read=read_history),
    Kind(name="comparison", schemas={b"headrace.compare/1", b"headrace.gate/1"}, read=read_comparison),
)  # fmt: skip
