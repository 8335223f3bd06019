"""What happened beside attempts and decisions: techniques that were not tried, validations, replays, measured pipelines."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import LedgerError
from headrace.ledger import database
from headrace.runs.formats.events import Event, EventKind
from headrace.runs.run_folder import headrace_version


class Events:
    """The events of a ledger; `Ledger.events` is one.

    Args:
        connection: Of the ledger.
        using: Holds the ledger's lock and turns SQLite's errors into words.
        clock: The ledger's.
        path: The ledger's, for messages.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        using: Callable[[], AbstractContextManager[None]],
        clock: Clock,
        path: Path,
    ) -> None:
        self._connection = connection
        self._using = using
        self._clock = clock
        self._path = path

    def write(self, event: Event) -> Event:
        """Write an event down, for good, and return it with its id such as `e12`."""
        with self._using(), database.transaction(self._connection):
            created = self._clock.unix_seconds()
            event = msgspec.structs.replace(event, created_unix_seconds=created, id="")
            cursor = self._connection.execute(
                "INSERT INTO events (created, kind, attempt, technique, golden, headrace_version, document)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    created, event.kind, event.attempt, event.technique, event.golden_sha256, headrace_version(),
                    msgspec.json.encode(event).decode(),
                ),
            )  # fmt: skip
            return msgspec.structs.replace(event, id=f"e{cursor.lastrowid}")

    def events(
        self, kind: EventKind | None = None, *, technique: str | None = None, attempt: str | None = None
    ) -> list[Event]:
        """Return events, the newest first.

        Args:
            kind: Only such; None: all.
            technique: Only of techniques that begin so.
            attempt: Only about this attempt.
        """
        with self._using():
            rows = self._connection.execute(
                "SELECT number, document FROM events WHERE (:kind IS NULL OR kind = :kind)"
                " AND (:technique IS NULL OR substr(technique, 1, length(:technique)) = :technique)"
                " AND (:attempt IS NULL OR attempt = :attempt) ORDER BY number DESC",
                {"kind": kind, "technique": technique, "attempt": attempt},
            ).fetchall()
        return [self._decoded(number, text) for number, text in rows]

    def _decoded(self, number: int, text: str) -> Event:
        try:
            return msgspec.structs.replace(msgspec.json.decode(text, type=Event), id=f"e{number}")
        except msgspec.DecodeError as error:
            raise LedgerError(f"the ledger {self._path} holds an event that cannot be read: {error}") from error
