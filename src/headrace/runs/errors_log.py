"""`errors.jsonl`: one line for each delivery of a job that did not succeed, written at once."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.error_origin import Origin
from headrace.base.errors import RunFolderError
from headrace.base.formatting import encodable
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind

logger = logging.getLogger("headrace")

#: A reason longer than this is cut: it may carry a whole traceback or a server's answer.
MAX_REASON_CHARACTERS = 2000
#: Types and places of errors whose traceback is written.
MOST_PLACES = 100


class ErrorLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of `errors.jsonl`. Fields with a default are left out where they have it, and are not in older files."""

    job_id: str
    attempt: int
    outcome: str
    """rejected | dead_lettered | retry | returned."""
    reason: str
    settled_unix_seconds: float
    origin: Origin | None = None
    """Where in the user's code it comes from; the traceback stands in the first line of each type and place alone."""
    excused: bool = False
    """Returned because nothing succeeded, or for want of something on the machine: it does not count against the job."""


class ErrorLog(Observer):
    """Writes each delivery of a job that did not succeed, but for those that wait for their turn; thread-safe.

    A run in which everything fails must not fill the disk, so the file ends after `max_lines`; the last line, written by
    `close`, is then `{"not_written": {outcome: number}}`.

    Attributes:
        not_written: {outcome: number of deliveries} without a line of their own.
    """

    def __init__(self, path: Path, *, max_lines: int = 10_000, clock: Clock | None = None) -> None:
        self.not_written: dict[str, int] = {}
        self._path = path
        self._lines_left = max_lines
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._complained = False
        self._places: set[tuple[str, str, int]] = set()
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be written: {error.strerror}; choose another run folder with -o"
            ) from error

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Write a line unless the job was delivered, or only waits for its turn."""
        if outcome.kind is OutcomeKind.DELIVERED or outcome.is_put_aside:
            return
        with self._lock:
            if self._lines_left <= 0 or not self._write(self._line(job, outcome)):
                self.not_written[outcome.kind] = self.not_written.get(outcome.kind, 0) + 1
            else:
                self._lines_left -= 1

    def close(self) -> None:
        """Write how many have no line, and close the file."""
        with self._lock:
            if self._file is None:
                return
            if self.not_written:
                self._write({"not_written": self.not_written})
            os.close(self._file)
            self._file = None

    def _line(self, job: Job, outcome: Outcome) -> ErrorLine:
        reason, origin = outcome.reason, outcome.origin
        if origin is not None and (origin.key in self._places or len(self._places) >= MOST_PLACES):
            origin = origin.brief()
        elif origin is not None:
            self._places.add(origin.key)
        if len(reason) > MAX_REASON_CHARACTERS:
            reason = f"{reason[:MAX_REASON_CHARACTERS]}… ({len(reason):,} characters)"
        return ErrorLine(
            *(encodable(job.id), job.attempt, outcome.kind, encodable(reason), self._clock.unix_seconds()),
            origin,
            outcome.excused,
        )

    def _write(self, line: Any) -> bool:
        """Write one line in one call, so that a kill cannot split it; return whether that worked."""
        if self._file is None:
            return False
        encoded = msgspec.json.encode(line) + b"\n"
        try:
            written = os.write(self._file, encoded)
            if written == len(encoded):
                return True
            # A full disk took a part. End that line, so that the next one stands alone.
            os.write(self._file, b"\n")
        except OSError as error:
            if not self._complained:
                logger.error(
                    "%s cannot be written: %s; failed jobs are only counted from here on, and the run goes on. "
                    "Free space on the disk to have their reasons.",
                    self._path,
                    error.strerror,
                )
            self._complained = True
        return False
