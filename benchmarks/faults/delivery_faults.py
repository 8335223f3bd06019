"""Faults of where results go."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.faults.case import Case
from benchmarks.faults.fault import Fault
from headrace.delivery.sql import SqlTable

_CALLBACK_SECONDS = 0.0025
_ROW_SECONDS = 0.008
_TABLE = "create table results (id text primary key, task text, attributes text, result text, run text)"
_TRIGGER = "create trigger slow after insert on results begin select wait(); end"


@dataclass(slots=True)
class SlowTable:
    """A database whose table has a trigger that takes its time for each row.

    Args:
        seconds: For a row.
    """

    seconds: float
    folder: str = ""

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Make the table, and remove it at the end."""
        with tempfile.TemporaryDirectory(prefix="headrace-table-") as self.folder:
            with contextlib.closing(sqlite3.connect(Path(self.folder) / "results.db")) as connection:
                connection.execute(_TABLE)
                connection.execute(_TRIGGER)
            yield

    def delivery(self) -> SqlTable:
        """Return a delivery to the table."""
        import sqlalchemy

        table = SqlTable(f"sqlite:///{self.folder}/results.db")
        sqlalchemy.event.listen(table._engine, "connect", self._add_function)  # noqa: SLF001 - no other way to the driver
        return table

    def _add_function(self, connection: Any, record: object) -> None:
        connection.create_function("wait", 0, functools.partial(time.sleep, self.seconds))


def _slow_callback(case: Case, dose: float) -> Case:
    return case.with_server(callback_seconds=_CALLBACK_SECONDS * dose).with_settings("deliver.workers=1")


def _slow_table(case: Case, dose: float) -> Case:
    table = SlowTable(_ROW_SECONDS * dose)
    return replace(case, delivery=table.delivery).with_beside(table.there)


FAULTS = (
    Fault(
        id="F22",
        title="the callback is slow to answer, and one worker waits for it",
        dose=f"its latency, from {_CALLBACK_SECONDS * 1000:g} ms",
        applies_to=("download_heavy",),
        inject=_slow_callback,
        fix=lambda case: case.with_settings("deliver.workers=16"),
    ),
    Fault(
        id="F47",
        title="results go to a table whose trigger takes its time for each row",
        dose=f"time for a row, from {_ROW_SECONDS * 1e3:g} ms",
        applies_to=("decode_heavy", "python_preprocess"),
        inject=_slow_table,
    ),
)
