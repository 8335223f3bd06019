"""Results as columns, in a folder of closed Parquet files."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from headrace.base.errors import DeliveryFailed, SettingsError
from headrace.base.records import Job
from headrace.delivery.encoding import encode


class Parquet:
    """Writes `part-*.parquet` files into a folder; any Parquet reader takes the folder as one table.

    A file counts once it is closed and renamed, so a result is durable only then, and its job is settled then. Columns:
    `id`, then the keys of a result that is a dict, or `result`.

    Args:
        folder: Made if missing; earlier parts stay.
        rows_per_file: A part is closed after so many results.
        seconds_per_file: Or after this time, so that a queue's jobs are settled soon.
    """

    default_workers = 1

    def __init__(self, folder: str | Path, *, rows_per_file: int = 20_000, seconds_per_file: float = 10.0) -> None:
        self.folder = Path(folder)
        self.flush_items = rows_per_file
        self.flush_seconds = seconds_per_file
        self._lock = threading.Lock()
        self._rows: list[tuple[str, Any]] = []
        self._part = 0
        self._prefix = ""

    def open(self, context: Any) -> None:
        """Make the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"results folder {self.folder} cannot be made: {error}") from None
        self._prefix = f"part-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result for the next file; see `protocols.Delivery.deliver`."""
        with self._lock:
            self._rows.append((job.id, result))
        return False

    def flush(self) -> None:
        """Write what is kept as one closed file.

        Raises:
            DeliveryFailed: If it cannot be written; the results stay kept.
        """
        with self._lock:
            if not self._rows:
                return
            final = self.folder / f"{self._prefix}-{self._part:06d}.parquet"
            partial = final.with_name(f".{final.name}.partial")
            try:
                pyarrow.parquet.write_table(_table(self._rows), partial)
                os.replace(partial, final)
            except (OSError, pyarrow.ArrowException) as error:
                partial.unlink(missing_ok=True)
                raise DeliveryFailed(f"{final} cannot be written: {error}") from None
            self._part += 1
            self._rows = []

    def close(self) -> None:
        """Write the rest."""
        self.flush()


def _table(rows: list[tuple[str, Any]]) -> pyarrow.Table:
    columns: dict[str, list[Any]] = {"id": [row_id for row_id, _ in rows]}
    if all(isinstance(result, dict) for _, result in rows):
        # "id" is the job's; a result's own "id" would be lost without a name of its own.
        names = dict.fromkeys(str(key) for _, result in rows for key in result)
        for name in names:
            columns["result_id" if name == "id" else name] = [result.get(name) for _, result in rows]
    else:
        columns["result"] = [result for _, result in rows]
    return pyarrow.table({name: _column(values) for name, values in columns.items()})


def _column(values: list[Any]) -> pyarrow.Array:
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError):
        # Results of mixed shape or type: keep them readable as JSON text.
        return pyarrow.array([encode(value).decode() for value in values])
