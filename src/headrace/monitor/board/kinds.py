"""What the board finds, by what lies in a folder or at the beginning of a file: one entry of `KINDS` each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

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
    read_plain,
    read_review,
    read_run_record,
)
from headrace.monitor.board.records import Record
from headrace.monitor.history.store import HISTORY
from headrace.runs.file_names import RUN_JSON, SUPERVISED_FILE
from headrace.runs.formats.incident import FILE as INCIDENT_FILE

#: Where SQLite keeps the number of the program that a file belongs to.
_NUMBER_AT, _SQLITE = 68, b"SQLite format 3\x00"
#: Our documents begin with their schema.
_HEAD_BYTES = 128


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
    """What changes in its folder, as globs; else one of its marks."""
    has_more: bool = False
    """Whether other things may lie below."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return bool(self.marks)

    def version(self, path: Path) -> tuple[float, int]:
        """Return what changes when the whole does: the time of the last change, and a number; raises OSError."""
        if self.changing:
            found = [status for pattern in self.changing for status in map(os.stat, path.glob(pattern))]
            return max((one.st_mtime for one in found), default=path.stat().st_mtime), len(found)
        status = (path / min(self.marks) if self.marks else path).stat()
        if self.application_id:  # what a writer that is at work has added stands beside the file
            with contextlib.suppress(OSError):
                beside = path.with_name(f"{path.name}-wal").stat()
                return max(status.st_mtime, beside.st_mtime), status.st_size + beside.st_size
        return status.st_mtime, status.st_size

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
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


#: The first that fits counts.
KINDS = (
    Kind(name="incident", marks={RUN_JSON, INCIDENT_FILE}, read=read_incident),
    Kind(name="run", marks={RUN_JSON}, read=read_run_record),
    Kind(name="workers", marks={SUPERVISED_FILE}, read=read_plain("workers"), has_more=True),
    Kind(name="loop", marks={LOOP_FILE, "runs"}, read=read_loop, has_more=True),
    Kind(name="drift", marks={"scores.json", "windows"}, read=read_drift),
    Kind(name="drift", marks={"baseline.json", "windows"}, read=read_drift),
    Kind(
        name="review", marks={"samples", "lock"}, read=read_review,
        changing=("samples", "samples/*", "rounds", "verdicts.jsonl"),
    ),
    Kind(name="canary", marks={"state.json", "lock"}, read=read_canary),
    Kind(name="ledger", application_id=LEDGER.application_id, read=read_ledger),
    Kind(name="history", application_id=HISTORY.application_id, read=read_history),
    Kind(name="comparison", schemas={b"headrace.compare/1", b"headrace.gate/1"}, read=read_comparison),
)  # fmt: skip
