"""Ends a run after as many jobs as its user allows (`--limit`), of which those that were turned away are none."""

from __future__ import annotations

from headrace.base.formatting import pluralize, showable
from headrace.base.records import Job, Outcome


class RunLimit:
    """Counts for one run; the lock of `Admission` is held around `settled`.

    A delivery that was turned away, because nothing of its task succeeds or its server is left alone, does not count: else a
    task of which nothing can be made would use up the limit of the others. One that a source without end puts aside does: it
    may come again after hours, and who sets a limit waits for the end.

    Args:
        most: Deliveries that count.
        source_ends: Whether the source offers what is put aside once more, and then has an end.
    """

    def __init__(self, most: int, *, source_ends: bool) -> None:
        self._most = most
        self._source_ends = source_ends
        self._num_turned_away = 0
        self._aside: dict[str, str] = {}
        """{id: why} of jobs that were turned away and have not come again."""

    def left(self, received: int) -> int:
        """Return how many deliveries that count are still to be received, of all that were."""
        return self._most - received + self._num_turned_away

    def settled(self, job: Job, outcome: Outcome) -> None:
        """Note how a delivery ended."""
        if not (outcome.excused or outcome.spared):
            self._aside.pop(job.id, None)
            return
        self._aside[job.id] = outcome.reason
        self._num_turned_away += outcome.excused or self._source_ends or outcome.is_put_aside

    def warning(self) -> str:
        """Return how many jobs are left because they were put aside, and why; empty: none is."""
        if not self._aside:
            return ""
        last = next(reversed(self._aside.values()))
        return (
            f"put aside and not done before this run ended by its limit: {pluralize(len(self._aside), 'job')}, left at the "
            f"source. The last: {showable(last)}"
        )
