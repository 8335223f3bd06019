"""The history's file: one SQLite file with a line for each run, incident and new baseline, and the windows of the runs.

How this works: each process of a run has a row of `lines` for each Plan that it used, and rows with the same `key` and Plan are
one line, whose windows are added up. A row is written when the run begins and again when it ends; the window in progress is
written every minute, so that a run that is killed loses a minute. A run folder that is added again replaces what the same
folder gave before. Opening, versions and locks are those of the ledger's file (`headrace.ledger.database`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import LedgerError
from headrace.ledger import database
from headrace.ledger.ledger import DEFAULT_FILE as LEDGER_FILE
from headrace.monitor.history.merging import merge_lines, merge_windows
from headrace.monitor.history.moments import as_matrix
from headrace.runs.formats.history import HistoryLine, HistoryWindow

VARIABLE = "HEADRACE_HISTORY"
#: Where it is unless the variable or an option names another file: beside the ledger.
DEFAULT_FILE = LEDGER_FILE.with_name("history.sqlite")

#: Migration 1: 2026-11, first.
_MIGRATIONS = (
    (
        """
        CREATE TABLE lines (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL,               -- of the run; the same for all its processes
            kind TEXT NOT NULL,              -- run, incident or restart
            began REAL NOT NULL, ended REAL, -- Unix seconds; NULL: it runs, or was killed
            pipeline TEXT NOT NULL,
            plan_id TEXT NOT NULL,
            machine TEXT NOT NULL,           -- fingerprint of the machine family
            folder TEXT NOT NULL,            -- empty: none
            document TEXT NOT NULL           -- JSON of runs.formats.history.HistoryLine
        )
        """,
        "CREATE INDEX lines_of ON lines (pipeline, plan_id, machine, began)",
        """
        CREATE TABLE windows (
            line INTEGER NOT NULL REFERENCES lines (number) ON DELETE CASCADE,
            number INTEGER NOT NULL,         -- since the run began
            document TEXT NOT NULL,          -- JSON of runs.formats.history.HistoryWindow
            PRIMARY KEY (line, number)
        ) WITHOUT ROWID
        """,
    ),
)
#: Its number is the bytes "hrhi".
HISTORY = database.FileKind(
    name="history",
    application_id=0x68726869,
    migrations=_MIGRATIONS,
    made_by="`headrace run --history FILE` and `headrace history add RUN` make it, --history FILE names another",
    elsewhere=f"--history FILE or {VARIABLE}",
)
_Document = TypeVar("_Document", HistoryLine, HistoryWindow)


def history_path(given: str | Path | None = None) -> Path:
    """Return the history's file: the one given, else that of HEADRACE_HISTORY, else `runs/history.sqlite`."""
    return Path(given or os.environ.get(VARIABLE) or DEFAULT_FILE)


class History:
    """Lines and windows. Thread-safe; any number of processes may use one file.

    Args:
        path: The file; made when it is missing.
        must_exist: Raise instead of making it.
        busy_seconds: How long a call waits for another process.

    Raises:
        LedgerError: If the file cannot be used; every method raises it for the same reasons.
    """

    def __init__(
        self, path: str | Path, *, must_exist: bool = False, busy_seconds: float = database.BUSY_SECONDS
    ) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection = database.connect(self.path, HISTORY, must_exist=must_exist, busy_seconds=busy_seconds)

    def add_line(self, line: HistoryLine, windows: Sequence[HistoryWindow] = ()) -> int:
        """Write a line, and return the number of its row; what its folder gave before for the same time is replaced.

        Rows with the line's own key stay: they are of the other processes of its run.
        """
        with self._writing():
            if line.folder and line.ended_unix_seconds is not None:
                self._connection.execute(
                    "DELETE FROM lines WHERE folder = ? AND key != ? AND plan_id = ? AND kind = ? AND began < ?"
                    " AND coalesce(ended, began + 1) > ?",
                    (line.folder, line.key, line.plan_id, line.kind, line.ended_unix_seconds, line.began_unix_seconds),
                )
            cursor = self._connection.execute(
                "INSERT INTO lines (key, kind, began, ended, pipeline, plan_id, machine, folder, document)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                _columns(line),
            )
            assert cursor.lastrowid is not None
            for number, window in enumerate(windows):
                self._write_window(cursor.lastrowid, number, window)
            return cursor.lastrowid

    def remove_run(self, folder: str, key: str) -> None:
        """Remove what a run folder that is added again gave before."""
        with self._writing():
            self._connection.execute("DELETE FROM lines WHERE folder = ? AND key = ?", (folder, key))

    def change_line(self, row: int, line: HistoryLine) -> None:
        """Write the row of a line again."""
        with self._writing():
            self._connection.execute(
                "UPDATE lines SET key = ?, kind = ?, began = ?, ended = ?, pipeline = ?, plan_id = ?, machine = ?, folder = ?,"
                " document = ? WHERE number = ?",
                (*_columns(line), row),
            )

    def write_window(self, row: int, number: int, window: HistoryWindow) -> None:
        """Write a window of a line's row, or write it again."""
        with self._writing():
            self._write_window(row, number, window)

    def lines(self, *, pipeline: str | None = None) -> list[HistoryLine]:
        """Return the lines, the newest first.

        Args:
            pipeline: Only of this one; None: all.
        """
        rows = self._read(
            "SELECT number, document FROM lines WHERE ?1 IS NULL OR pipeline = ?1 ORDER BY number", (pipeline,)
        )
        parts: dict[tuple[str, str], list[HistoryLine]] = defaultdict(list)
        for number, document in rows:
            line = msgspec.structs.replace(self._decode(document, HistoryLine), id=f"h{number}")
            parts[line.key or line.id, line.plan_id].append(line)
        merged = (merge_lines(lines) for lines in parts.values())
        return sorted(merged, key=lambda line: line.began_unix_seconds, reverse=True)

    def windows(self, pipeline: str, plan_id: str, machine: str) -> list[tuple[str, HistoryWindow]]:
        """Return the (key of the run, window) of one pipeline, Plan and machine family since its newest restart, in order."""
        since = max(
            (
                line.began_unix_seconds
                for line in self.lines(pipeline=pipeline)
                if line.kind == "restart" and line.plan_id in ("", plan_id)
            ),
            default=0.0,
        )
        rows = self._read(
            "SELECT l.key, l.began, w.number, w.document FROM lines l JOIN windows w ON w.line = l.number"
            " WHERE l.pipeline = ? AND l.plan_id = ? AND l.machine = ? AND l.kind = 'run' AND l.began >= ?",
            (pipeline, plan_id, machine, since),
        )
        parts: dict[tuple[str, int], list[HistoryWindow]] = defaultdict(list)
        began: dict[str, float] = {}
        for key, start, number, document in rows:
            parts[key, number].append(self._decode(document, HistoryWindow))
            began[key] = min(start, began.get(key, start))
        ordered = sorted(parts, key=lambda part: (began[part[0]], part))
        return [(key, merge_windows(parts[key, number])) for key, number in ordered]

    def close(self) -> None:
        """Release the file. Repeating it does nothing."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with (
            self._lock,
            database.translate_errors(self.path, HISTORY),
            database.transaction(self._connection),
        ):
            yield

    def _write_window(self, row: int, number: int, window: HistoryWindow) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO windows VALUES (?, ?, ?)", (row, number, encode_document(window).decode())
        )

    def _read(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock, database.translate_errors(self.path, HISTORY):
            return self._connection.execute(query, values).fetchall()

    def _decode(self, text: str, kind: type[_Document]) -> _Document:
        try:
            found = decode_document(text, kind)
            for sums in found.stages.values() if isinstance(found, HistoryWindow) else ():
                as_matrix(sums)
            return found
        except (msgspec.DecodeError, ValueError) as error:
            raise LedgerError(
                f"the history {self.path} holds what cannot be read: {error}; it was edited, or a newer headrace wrote it"
            ) from error


def _columns(line: HistoryLine) -> tuple[Any, ...]:
    return (
        line.key, line.kind, line.began_unix_seconds, line.ended_unix_seconds, line.pipeline, line.plan_id, line.machine,
        line.folder, encode_document(line).decode(),
    )  # fmt: skip
