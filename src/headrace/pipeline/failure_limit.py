"""How many jobs of a run may fail before it is ended: `headrace run --max-failed`, `hr.run(max_failed=...)`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.errors import SettingsError
from headrace.base.formatting import pluralize
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind

#: A share is of at least so many jobs while the run goes on: the first job that fails would else be all of them.
_SHARE_OF_AT_LEAST = 20


@dataclass(frozen=True, slots=True)
class MostFailed:
    """A number of jobs, or a share of them."""

    number: int | None
    share: float | None

    @classmethod
    def parse(cls, value: str | float) -> MostFailed:
        """Return what `5`, `5%` or, as a number below 1, `0.05` means.

        Raises:
            SettingsError: If it is neither.
        """
        text = str(value).strip()
        try:
            if text.endswith("%"):
                share: float | None = float(text[:-1]) / 100
            else:
                share = None if text.isdecimal() else float(text)
        except ValueError:
            share = -1.0
        if share is not None and not 0 <= share < 1:
            raise SettingsError(
                f"max_failed = {value!r} is neither a number of jobs nor a share of them; expected 5, 5% or 0.05"
            )
        return cls(int(text) if share is None else None, share)

    def is_exceeded(self, failed: int, of: int) -> bool:
        """Return whether more jobs failed than may, of so many that ended."""
        return failed > (self.number if self.number is not None else (self.share or 0.0) * of)

    def __str__(self) -> str:
        return f"{self.number:,}" if self.number is not None else f"{100 * (self.share or 0.0):g} %"


class FailureLimit(Observer):
    """Counts jobs that ended for good, and ends the run once too many of them were rejected or dead-lettered; thread-safe.

    Args:
        most: Allowed.
        end: Ends the run early, for a reason.
    """

    def __init__(self, most: MostFailed, end: Callable[[str], None]) -> None:
        self._most = most
        self._end = end
        self._lock = threading.Lock()
        self._failed = 0
        self._delivered = 0

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Count it."""
        if outcome.kind not in (OutcomeKind.DELIVERED, OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED):
            return
        with self._lock:
            if outcome.kind is OutcomeKind.DELIVERED:
                self._delivered += 1
                return
            self._failed += 1
            ended = max(_SHARE_OF_AT_LEAST, self._failed + self._delivered)
            is_exceeded = self._most.is_exceeded(self._failed, ended)
        if is_exceeded:
            self._end(self._says())

    def verdict(self) -> str:
        """Return, when the run is over, why it counts as failed; empty: it does not."""
        is_exceeded = self._most.is_exceeded(self._failed, self._failed + self._delivered)
        return self._says() if is_exceeded else ""

    def _says(self) -> str:
        of = f" of {self._failed + self._delivered:,}" if self._most.share is not None else ""
        return f"{pluralize(self._failed, 'job')}{of} failed, allowed were {self._most} (max_failed)"
