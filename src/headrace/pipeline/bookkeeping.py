"""The thread that counts what workers did and makes spans of it for those who watch.

How this works: a worker leaves a `WorkNote` here, which costs it an append. The bookkeeper gives it to the run's summary, and
makes spans of it only if somebody wants them; where that is the run folder alone, only of recorded items. Only so many may
wait: where workers leave more than one thread can write down, each waits a moment before it goes on, so that memory stays
constant and nothing is left out. That wait is bounded, because an observer of a user's may hang. Acks and heartbeats are
another thread's: they come on time however many spans there are.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from headrace.pipeline.run_context import RunContext
from headrace.pipeline.work_notes import WorkNote

#: Spans made in one go; about a hundred microseconds.
_SPANS_AT_ONCE = 48
#: Spans that may wait to be made, about: some 5 MB.
_MOST_SPANS = 10_000
#: Longest time without a look at the rest of what the bookkeeper does.
_REPORT_SECONDS = 0.02
#: How long a worker waits at most before it goes on all the same.
_WAIT_SECONDS = 0.05


class Bookkeeper:
    """Makes spans; `note` from any thread, `report` from one.

    Args:
        context: Of the run: who watches, and which Plan is in force.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._passages: deque[WorkNote] = deque()
        self._spans_per_passage = 1.0
        self._most = _MOST_SPANS
        self._has_room = threading.Event()

    def note(self, passage: WorkNote) -> None:
        """Take what a worker did; waits a moment where too much waits already."""
        self._passages.append(passage)
        if len(self._passages) > self._most:
            self._has_room.clear()
            self._has_room.wait(_WAIT_SECONDS)

    @property
    def num_waiting(self) -> int:
        """Passages of which no spans were made yet."""
        return len(self._passages)

    def report(self, budget_seconds: float | None = _REPORT_SECONDS) -> bool:
        """Make spans and tell those who watch; return whether none is left to make.

        Args:
            budget_seconds: Stop after about this time; None goes on to the end.
        """
        ends = None if budget_seconds is None else time.perf_counter() + budget_seconds
        while self._passages:
            self._report_some()
            if len(self._passages) <= self._most // 2:
                if not self._has_room.is_set():
                    self._has_room.set()
                time.sleep(0)  # lets go of the GIL: a device that has just finished may be waiting for it
            if ends is not None and time.perf_counter() >= ends:
                break
        return not self._passages

    def _report_some(self) -> None:
        context, observers = self._context, self._context.observers
        notes: list[WorkNote] = []
        num_spans = 0
        while self._passages and num_spans < _SPANS_AT_ONCE:
            note = self._passages.popleft()
            notes.append(note)
            num_spans += len(note.arrivals) * len(note.stages)
        self._spans_per_passage += 0.1 * (num_spans / len(notes) - self._spans_per_passage)
        self._most = max(1, int(_MOST_SPANS / max(1.0, self._spans_per_passage)))
        context.read_notes(notes)
        if observers.wants["stage_finished"]:
            only = not observers.wants_unrecorded
            spans = [span for note in notes for span in note.spans(context.plan_id, context.unit, recorded_only=only)]
            if spans:
                observers.notify("stage_finished", spans)
