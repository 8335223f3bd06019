"""One line of JSON per result."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import IO, Any

from headrace.base.errors import DeliveryFailed, SettingsError
from headrace.base.records import Job
from headrace.delivery.encoding import encode


class JsonLines:
    """Appends `{"id", "task", "result"}` to a file; a line is durable once the operating system has it.

    It survives the end of this process at any moment, not the end of the machine. A job delivered twice (delivery is at
    least once) gives two lines with one id.

    Args:
        path: The file; made with its folder if missing, appended to if there.
    """

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 1

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def open(self, context: Any) -> None:
        """Open the file, and end a line that a killed process left unfinished."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+", buffering=0)
            if self._file.seek(0, 2):
                self._file.seek(-1, 2)
                if self._file.read(1) != b"\n":
                    self._file.write(b"\n")
        except OSError as error:
            raise SettingsError(f"results file {self.path} cannot be written: {error}") from None

    def deliver(self, job: Job, result: Any) -> bool:
        """Write one line; see `protocols.Delivery.deliver`."""
        line = encode({"id": job.id, "task": job.task, "result": result}) + b"\n"
        if self._file is None:
            raise RuntimeError("deliver() before open()")
        try:
            with self._lock:
                written = self._file.write(line)
                if written != len(line):
                    self._file.truncate(self._file.tell() - (written or 0))
                    raise OSError("no space for the whole line")
        except OSError as error:
            raise DeliveryFailed(f"{self.path} cannot be written: {error}") from None
        return True

    def flush(self) -> None:
        """Nothing waits: the file is not buffered."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
