"""Results in a CSV file: `--results results.csv`."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any, TextIO

from headrace.base.errors import DeliveryRejected, SettingsError
from headrace.base.records import Job


class CsvResults:
    """Appends one row per job: its id, and its result as JSON.

    Args:
        path: Must not exist.
    """

    flush_items = 100
    flush_seconds = 1.0
    default_workers = 1  # one file, one writer

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None

    def open(self, context: Any) -> None:
        """Make the file."""
        try:
            self._file = self._path.open("x", newline="")
        except OSError as error:
            raise SettingsError(f"{self._path} cannot be made: {error.strerror}") from error
        self._rows = csv.writer(self._file)
        self._rows.writerow(("id", "result"))

    def deliver(self, job: Job, result: Any) -> bool:
        """Write a row; it is durable at the next flush."""
        try:
            text = json.dumps(result)
        except (TypeError, ValueError) as error:
            raise DeliveryRejected(f"result.not_json: {error}") from error
        self._rows.writerow((job.id, text))
        return False

    def flush(self) -> None:
        """Make all rows durable."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close."""
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None
