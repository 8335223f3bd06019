"""Ends jobs: each exactly once, whatever ended it, and everybody who must know hears of it here.

The one place where a job's source (`Job.settle`), its observers, and those that wait for its place are notified, of success and
failure alike.
"""

from __future__ import annotations

import threading

from headrace.base.errors import ItemError
from headrace.base.policies.brake import Fault
from headrace.base.protocols import Delivery
from headrace.base.records import DELIVERED, Outcome, OutcomeKind
from headrace.pipeline.admission import Admission
from headrace.pipeline.failing import Failing
from headrace.pipeline.item import Item
from headrace.pipeline.ordering import Reorderer
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.unflushed import UnflushedResults

_LATE = Outcome(OutcomeKind.RETURNED, "its visibility timeout ran out before it was done")
_NOT_WRITTEN = Outcome(OutcomeKind.RETRY, "deliver: the result could not be written", 0.0, True)


class Settling:
    """How the jobs of one run end; thread-safe.

    Args:
        context: Of the run.
        admission: Who is in flight.
        failing: Makes outcomes of errors.
        delivery: Makes results durable.
        reorderer: Is not to wait for who failed; None: order does not matter.

    Attributes:
        is_flush_due: Set where results should be made durable without waiting for company.
        unflushed: Results that are not durable yet.
    """

    def __init__(
        self,
        context: RunContext,
        admission: Admission,
        failing: Failing,
        delivery: Delivery,
        reorderer: Reorderer | None,
    ) -> None:
        self._context = context
        self._admission = admission
        self._failing = failing
        self._reorderer = reorderer
        self.is_flush_due = threading.Event()
        self.unflushed = UnflushedResults(delivery, self._delivered, context.clock)

    def hand_over(self, item: Item) -> None:
        """Take an item that went through the delivery: its job ends once the result is durable."""
        if item.kept is None:  # another run's work, which says nothing about this one's
            self._failing.succeeded(item.job)
        if item.value:
            self.settle(item, DELIVERED)
            return
        self.unflushed.add(item)
        # While results cannot be written they count as in flight, or a full disk would fill the memory.
        if not self.unflushed.is_stuck and self._admission.make_room(item):
            self.is_flush_due.set()  # perhaps these were the last

    def fail(self, item: Item, error: ItemError, stage: str) -> None:
        """End an item's job as rejected or for another try, with the reason."""
        error.locate(stage, item.id)
        outcome = self._failing.outcome(item, error)
        drop_frames(error)
        item.error = None
        self.settle(item, outcome)

    def give_up(self, item: Item, error: ItemError, stage: str) -> None:
        """End an item's job for good: another try would end like this one."""
        error.locate(stage, item.id)
        self.judge(item, Outcome(OutcomeKind.DEAD_LETTERED, str(error), origin=error.origin), Fault.WORK)

    def judge(self, item: Item, outcome: Outcome, fault: Fault) -> None:
        """End a job with a failure, unless nothing succeeds: then it is given back."""
        self.settle(item, self._failing.judged(item.job, outcome, fault))

    def take_back(self, item: Item, reason: str) -> None:
        """Let the source offer an item's job again, without its being the job's fault."""
        self.settle(item, Outcome(OutcomeKind.RETURNED, reason))

    def drop_lost(self, item: Item) -> None:
        """Leave an item whose loan ran out to whoever has it now."""
        self.settle(item, _LATE, counter="lost")

    def drop_unwritten(self) -> None:
        """Let the source offer those jobs again whose results did not become durable."""
        self.unflushed.flush()
        for item in self.unflushed.abandon():
            self.settle(item, _NOT_WRITTEN)

    def settle(self, item: Item, outcome: Outcome, counter: str | None = None) -> None:
        """End an item's job, unless it has ended.

        Args:
            item: Or a child of it.
            outcome: How it ends.
            counter: What counts it, if not the outcome.
        """
        root = item.root
        if not self._admission.settle(root, outcome, counter):
            return
        root.job.settle(outcome)
        self._failing.left(root.job)
        if self._reorderer is not None and not self._admission.is_given_up:  # what is given back needs no order
            self._reorderer.skip(root.sequence)
        if self._context.observers.wants["job_settled"]:
            self._context.observers.notify("job_settled", root.job, outcome)
        self._admission.note_idle()

    def _delivered(self, items: list[Item]) -> None:
        for item in items:
            self.settle(item, DELIVERED)


def drop_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error whose reason is all that is still wanted, and of what caused it.

    They hold the frames that the error went through, with the item and all that was computed of it. A frame that has the
    error in a variable makes this a cycle, which would last until the collector's next round; that is rare (see
    `calm_garbage_collector`).
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
