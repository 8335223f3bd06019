"""Says on the log what fails, while it fails: the first failure of each kind in full, the others as a number at the end."""

from __future__ import annotations

import logging
import threading
from typing import Any

from headrace.base.formatting import pluralize, showable
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.pipeline.reasons import Failure, failure_of

#: A name of its own: a log that programs read has a line of each failure, and none of these.
logger = logging.getLogger("headrace.failures")

#: Kinds of failures that are shown as they happen; the summary has the others.
MOST_KINDS = 10

_IN_WORDS = {
    OutcomeKind.REJECTED: "rejected",
    OutcomeKind.DEAD_LETTERED: "given up",
    OutcomeKind.RETRY: "to be tried again",
    OutcomeKind.RETURNED: "given back",
}


class FailureLog(Observer):
    """Warns of the first failure of each kind (code and line of the user's code), of others with -v alone; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._more: dict[Any, tuple[Failure, int]] = {}

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Show it, or count it."""
        if outcome.kind is OutcomeKind.DELIVERED:
            return
        failure = failure_of(job, outcome)
        if failure is None:
            return
        with self._lock:
            first, more = self._more.get(failure.key, (failure, -1))
            is_shown = more < 0 and len(self._more) < MOST_KINDS
            if is_shown or more >= 0:
                self._more[failure.key] = first, more + 1
        level = logging.WARNING if is_shown else logging.INFO
        if logger.isEnabledFor(level):
            named = "" if f": item {job.id}" in outcome.reason else f"{job.id}: "  # a source's reasons leave it out
            frames = f"\n{outcome.origin.traceback}" if outcome.origin and is_shown else ""
            logger.log(level, "%s: %s", _IN_WORDS[outcome.kind], showable(f"{named}{outcome.reason}{frames}"))

    def close(self) -> None:
        """Say how many more of each kind there were."""
        with self._lock:
            rows, self._more = list(self._more.values()), {}
        for first, more in rows:
            if more:
                what = (
                    f"{first.code}: {first.example}"
                    if first.origin is None
                    else f"{first.origin.error} at {first.origin.place}"
                )
                logger.warning("and %s like this one: %s", pluralize(more, "more failure"), showable(what))
