"""Documents in one table of a ledger: written once, for good, and read back with the id that they got."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace.base.clock import Clock
from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import LedgerError
from headrace.ledger import database
from headrace.runs.formats.events import Event
from headrace.runs.formats.optimization import Attempt
from headrace.runs.run_folder import headrace_version

Entry = TypeVar("Entry", Attempt, Event)


class Entries(Generic[Entry]):
    """What a table holds; a subclass names it, and says which of its documents it gives.

    Args:
        connection: Of the ledger.
        using: Holds the ledger's lock and turns SQLite's errors into words.
        clock: The ledger's.
        path: The ledger's, for messages.
    """

    kind: type[Entry]
    table: ClassVar[str]
    letter: ClassVar[str]
    """With which ids begin."""

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

    def _write(self, entry: Entry, columns: Mapping[str, Any]) -> Entry:
        """Write an entry down and return it with its id.

        Args:
            entry: Without id and time.
            columns: What is looked for, beside the document.
        """
        with self._using(), database.transaction(self._connection):
            # The moment is taken after waiting for other writers.
            entry = msgspec.structs.replace(entry, created_unix_seconds=self._clock.unix_seconds(), id="")
            values = {
                "created": entry.created_unix_seconds, **columns, "headrace_version": headrace_version(),
                "document": encode_document(entry).decode(),
            }  # fmt: skip
            cursor = self._connection.execute(
                f"INSERT INTO {self.table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
                tuple(values.values()),
            )
            return msgspec.structs.replace(entry, id=f"{self.letter}{cursor.lastrowid}")

    def _read(self, condition: str, values: tuple[Any, ...]) -> list[Entry]:
        """Return the entries of a condition of SQL."""
        with self._using():
            query = f"SELECT number, document FROM {self.table} {condition}"
            rows = self._connection.execute(query, values).fetchall()
        return [self._decode(number, text) for number, text in rows]

    def _decode(self, number: int, text: str) -> Entry:
        try:
            return msgspec.structs.replace(decode_document(text, self.kind), id=f"{self.letter}{number}")
        except msgspec.DecodeError as error:
            raise LedgerError(
                f"the ledger {self._path}, table {self.table}, holds what cannot be read: {error}"
            ) from error
