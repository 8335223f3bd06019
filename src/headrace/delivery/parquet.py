"""Results as columns, in a folder of closed Parquet files."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from headrace.base.errors import DeliveryFailed, SettingsError
from headrace.base.named_paths import read_path
from headrace.base.records import Job
from headrace.delivery.encoding import attributes_of, encode, encode_any_number, record_of
from headrace.delivery.parquet_parts import Schemas, add_part, table_of, unify_parts

logger = logging.getLogger("headrace")


class Row(NamedTuple):
    """One row of the table."""

    id: str
    attributes: dict[str, Any]
    result: Any


class Parquet:
    """Writes `part-*.parquet` files into a folder, which any Parquet reader takes as one table.

    A result is durable, and its job settled, once the file is closed and renamed. Columns: `id`, `attributes` (JSON text) if
    jobs have any, then the keys of a result that is a dict, or `result`. A column has the narrowest type that holds all of its
    values, in every part; JSON text if there is none. NaN and infinity are ordinary numbers; in JSON text they become the
    texts `NaN`, `Infinity` and `-Infinity`.

    Args:
        folder: The folder; created if missing. Earlier parts stay.
        rows_per_file: Results after which a part is closed.
        seconds_per_file: Time after which a part is closed anyway, so that a queue's jobs are settled soon.
    """

    default_workers = 1

    def __init__(self, folder: str | Path, *, rows_per_file: int = 20_000, seconds_per_file: float = 10.0) -> None:
        self.folder = read_path(folder, "folder", addresses="; results go there by ObjectResults or SqlTable (guides)")
        self.flush_items = rows_per_file
        self.flush_seconds = seconds_per_file
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._part = 0
        self._prefix = ""
        self._schemas = Schemas()

    @property
    def checkpoint(self) -> Path:
        """Folder for the state that resuming needs: beside the results, because readers take their whole folder."""
        return self.folder.with_name(f"{self.folder.name}.checkpoint")

    @property
    def has_results(self) -> bool:
        """Whether the folder holds any part."""
        return any(self.folder.glob("part-*.parquet"))

    def mark(self) -> dict[str, Any]:
        """Return the prefix of the names of a new run's parts."""
        self._prefix = _new_prefix()
        return {"parts": self._prefix}

    def recover(self, mark: Mapping[str, Any]) -> set[str]:
        """Return the ids of the results in the parts that a mark names, and remove what a killed process left unfinished.

        A part that cannot be read (after a power cut) is renamed so that readers of the folder skip it.
        """
        if not self.folder.is_dir():
            raise FileNotFoundError(self.folder)
        ours = str(mark.get("parts", "part"))
        for partial in self.folder.glob(f".{ours}-*.partial"):
            partial.unlink()
        found: set[str] = set()
        for part in sorted(self.folder.glob(f"{ours}-*.parquet")):
            try:
                found.update(pyarrow.parquet.ParquetFile(part).read(["id"])["id"].to_pylist())
            except (OSError, pyarrow.ArrowException, KeyError) as error:
                aside = part.with_name(f".{part.name}.damaged")
                os.replace(part, aside)
                logger.warning("%s cannot be read (%s) and is set aside as %s", part, error, aside.name)
        self._prefix = f"{ours}-{time.time_ns()}"
        return found

    def open(self, context: Any) -> None:
        """Make the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Report this now, not after the first part's results.
            with tempfile.TemporaryFile(dir=self.folder):
                pass
            unify_parts(self.folder, self._schemas)
        except OSError as error:
            raise SettingsError(f"results folder {self.folder} cannot be written: {error}") from None
        self._prefix = self._prefix or _new_prefix()

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result for the next file; see `protocols.Delivery.deliver`."""
        # Report this now, for this job alone: in `flush` it would block the whole part for ever.
        self.check(job, result)
        with self._lock:
            self._rows.append(Row(job.id, attributes_of(job), result))
        return False

    def check(self, job: Job, result: Any) -> bytes:
        """Return a result's row as JSON; see `protocols.Checkable`."""
        return encode_any_number(record_of(job, result))

    def flush(self) -> None:
        """Write the kept results as one closed file.

        Raises:
            DeliveryFailed: If it cannot be written; the results stay kept.
        """
        with self._lock:
            if not self._rows:
                return
            final = self.folder / f"{self._prefix}-{self._part:06d}.parquet"
            try:
                add_part(final, make_table(self._rows), self._schemas)
            except (OSError, pyarrow.ArrowException) as error:
                raise DeliveryFailed(f"{final} cannot be written: {error}") from None
            self._part += 1
            self._rows = []

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self._prefix = ""


def _new_prefix() -> str:
    return f"part-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"


def make_table(rows: Sequence[Row]) -> pyarrow.Table:
    """Return results as a table."""
    columns: dict[str, Sequence[Any]] = {"id": [row.id for row in rows]}
    if any(row.attributes for row in rows):
        # As text: the attributes of senders have no common schema.
        columns["attributes"] = [encode(row.attributes).decode() if row.attributes else None for row in rows]
    taken = {"id", "attributes"}
    if all(isinstance(row.result, dict) for row in rows):
        results = [{str(key): value for key, value in row.result.items()} for row in rows]
        for name in dict.fromkeys(key for result in results for key in result):
            # A result's own "id" needs another name, or it would be lost.
            columns[_free_name(name, results) if name in taken else name] = [result.get(name) for result in results]
    else:
        columns["result"] = [row.result for row in rows]
    return table_of(columns)


def _free_name(name: str, results: list[dict[str, Any]]) -> str:
    name = f"result_{name}"
    while any(name in result for result in results):
        name = f"result_{name}"
    return name
