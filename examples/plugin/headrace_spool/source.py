"""A source that is no queue: the lines of a growing file, from the offset that its readers reached.

    lines:///addresses.txt?group=night

Systems like Kafka work so: nothing is lent, no message has a visibility timeout, and one number says how far a group of readers
has come. After a crash, reading begins again at the first line that was not done: delivery is at least once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.base.errors import SettingsError, SourceError
from headrace.base.plan import SourcePlan
from headrace.base.protocols import Source
from headrace.base.records import Job, Outcome, OutcomeKind

log = logging.getLogger(__name__)

#: Tries of one line, unless the Plan says something else.
MAX_RECEIVES = 3
POLL_SECONDS = 0.05


class LinesSource(Source):
    """One job per line, which is its payload; its offset in the file is its id. `receive` and `settle` from any thread.

    Args:
        address: The file behind `lines:///`; `?group=NAME` keeps an offset of its own.
        drain: End at the end of the file, instead of waiting for more lines.
    """

    def __init__(self, address: str, *, drain: bool = False) -> None:
        parts = urlsplit(address)
        if parts.netloc or len(parts.path) < 2:
            raise SettingsError("lines:// is followed by a third slash and the file: lines:///addresses.txt")
        self._path = Path(unquote(parts.path[1:]))
        group = dict(parse_qsl(parts.query)).get("group", "headrace")
        self._offset_file = self._path.with_name(f"{self._path.name}.{group}.offset")
        self._drain = drain
        self._changed = threading.Condition()
        self._max_receives = MAX_RECEIVES
        self._file: BinaryIO | None = None
        self._again: deque[tuple[float, int, int, bytes]] = deque()
        """What is offered again: when, offset, attempt, line."""
        self._at_end = False

    @property
    def is_endless(self) -> bool:
        """Whether only a signal ends it."""
        return not self._drain

    @property
    def is_exhausted(self) -> bool:
        """Whether every line was given out."""
        return self._at_end and not self._again

    def open(self, settings: SourcePlan) -> None:
        """Go to where the group is."""
        self._max_receives = settings.max_receives or MAX_RECEIVES
        self._committed = self._saved = int(self._offset_file.read_text()) if self._offset_file.exists() else 0
        self._ends: dict[int, int] = {}  # of the lines that are out, and of those that are done before an earlier one
        self._done: set[int] = set()
        self._again.clear()
        self._at_end = False
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error.strerror}") from error
        self._file.seek(self._committed)

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return up to limit jobs, [] if there are none for now, None at the end of a file that is drained."""
        give_up_at = time.monotonic() + wait_seconds
        with self._changed:
            while self._file is not None:
                jobs = self._take(limit)
                if jobs:
                    return jobs
                if self.is_exhausted and len(self._done) == len(self._ends):
                    return None
                left = give_up_at - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(min(left, POLL_SECONDS))
        return None

    def tend(self) -> None:
        """Write the offset down if it moved."""
        with self._changed:
            if self._committed != self._saved:
                partial = self._offset_file.with_name(f".{self._offset_file.name}")
                partial.write_text(str(self._committed))
                partial.replace(self._offset_file)
                self._saved = self._committed

    def close(self) -> None:
        """Write the offset down and give out nothing more."""
        if self._file is not None:
            self.tend()
            with self._changed:
                self._file.close()
                self._file = None
                self._changed.notify_all()

    def _take(self, limit: int) -> list[Job]:
        jobs: list[Job] = []
        for _ in range(len(self._again)):
            due, offset, attempt, line = self._again.popleft()
            if due <= time.monotonic() and len(jobs) < limit:
                jobs.append(self._job(offset, attempt, line))
            else:
                self._again.append((due, offset, attempt, line))
        while len(jobs) < limit and (found := self._next_line()):
            jobs.append(self._job(found[0], 1, found[1]))
        return jobs

    def _next_line(self) -> tuple[int, bytes] | None:
        assert self._file is not None
        offset = self._file.tell()
        line = self._file.readline()
        if not line.endswith(b"\n"):  # the end, or a line that somebody is still writing
            self._file.seek(offset)
            self._at_end = self._drain
            return None
        self._ends[offset] = self._file.tell()
        return offset, line.rstrip(b"\r\n")

    def _job(self, offset: int, attempt: int, line: bytes) -> Job:
        def settle(job: Job, outcome: Outcome) -> None:
            self._settle(offset, attempt, line, outcome)

        payload = line.decode("utf-8", "replace")
        return Job(str(offset), payload, attempt=attempt, max_attempts=self._max_receives, settle=settle)

    def _settle(self, offset: int, attempt: int, line: bytes, outcome: Outcome) -> None:
        with self._changed:
            tries = attempt + (outcome.kind is OutcomeKind.RETRY)
            if outcome.kind in (OutcomeKind.RETRY, OutcomeKind.RETURNED) and tries <= self._max_receives:
                self._again.append((time.monotonic() + outcome.delay_seconds, offset, tries, line))
            else:
                if outcome.kind is not OutcomeKind.DELIVERED:
                    log.warning("%s: the line at %d is left behind: %s", self._path, offset, outcome.reason)
                self._done.add(offset)
                while self._committed in self._done:
                    self._done.remove(self._committed)
                    self._committed = self._ends.pop(self._committed)
            self._changed.notify_all()
