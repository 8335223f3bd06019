"""What the board finds, by what lies in a folder or at the beginning of a file: one entry of `KINDS` each."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from headrace.ledger.database import LEDGER
from headrace.monitor.board.reading import (
    LOOP_FILE,
    read_canary,
    read_drift,
    read_history,
    read_incident,
    read_ledger,
    read_loop,
    read_plain,
    read_run_record,
)
from headrace.monitor.board.records import Record
from headrace.monitor.history.store import HISTORY
from headrace.runs.file_names import RUN_JSON, SUPERVISED_FILE
from headrace.runs.formats.incident import FILE as INCIDENT_FILE

#: Where SQLite keeps the number of the program that a file belongs to.
_NUMBER_AT, _SQLITE = 68, b"SQLite format 3\x00"


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
    has_more: bool = False
    """Whether other things may lie below."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return bool(self.marks)

    def watched(self, path: Path) -> Path:
        """Return the file whose change is a change of the whole."""
        return path / min(self.marks) if self.marks else path

    def is_file(self, entry: os.DirEntry[str]) -> bool:
        """Return whether a file is one of this kind."""
        if not entry.name.endswith((".sqlite", ".db", ".sqlite3")):
            return False
        try:
            with open(entry.path, "rb") as file:
                head = file.read(_NUMBER_AT + 4)
        except OSError:
            return False
        return head.startswith(_SQLITE) and head[_NUMBER_AT:] == self.application_id.to_bytes(4, "big")


#: The first that fits counts.
KINDS = (
    Kind(name="incident", marks={RUN_JSON, INCIDENT_FILE}, read=read_incident),
    Kind(name="run", marks={RUN_JSON}, read=read_run_record),
    Kind(name="workers", marks={SUPERVISED_FILE}, read=read_plain("workers"), has_more=True),
    Kind(name="loop", marks={LOOP_FILE, "runs"}, read=read_loop, has_more=True),
    Kind(name="drift", marks={"scores.json", "windows"}, read=read_drift),
    Kind(name="drift", marks={"baseline.json", "windows"}, read=read_drift),
    Kind(name="review", marks={"samples", "lock"}, read=read_plain("review")),
    Kind(name="canary", marks={"state.json", "lock"}, read=read_canary),
    Kind(name="ledger", application_id=LEDGER.application_id, read=read_ledger),
    Kind(name="history", application_id=HISTORY.application_id, read=read_history),
)
