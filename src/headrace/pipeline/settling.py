"""Ends jobs: each exactly once, whatever ended it, and everybody who must know hears of it here.

The one place where a job's source (`Job.settle`), its observers, and those that wait for its place are notified, of success and
failure alike.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.base.errors import DeliveryRejected, ItemError
from headrace.base.policies.brake import Fault
from headrace.base.protocols import Delivery
from headrace.base.records import DELIVERED, Outcome, OutcomeKind
from headrace.pipeline.admission import Admission
from headrace.pipeline.definition import DELIVER
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
        reorderers: Are not to wait for who failed.

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
        reorderers: Sequence[Reorderer] = (),
    ) -> None:
        self._context = context
        self._reorderers = reorderers
        self._admission = admission
        self._failing = failing
        self.is_flush_due = threading.Event()
        self.unflushed = UnflushedResults(delivery, self._delivered, context.clock, self._refused)

    def hand_over(self, items: Sequence[Item]) -> None:
        """Take items that went through the delivery: their jobs end once the results are durable."""
        for item in items:
            # Another run's work says nothing about this one's, and a table that refuses every row is no success.
            if item.kept is None and (item.value or not self.unflushed.takes_nothing):
                self._failing.succeeded(item.job)
        durable = [item for item in items if item.value]
        if durable:
            self.settle_all(durable, DELIVERED)
        if len(durable) == len(items):
            return
        waiting = [item for item in items if not item.value]
        self.unflushed.add(waiting)
        # While results cannot be written they count as in flight, or a full disk would fill the memory.
        if not self.unflushed.is_stuck and self._admission.make_room(waiting):
            self.is_flush_due.set()  # perhaps these were the last

    def fail(self, item: Item, error: ItemError, stage: str, fault: Fault | None = None) -> None:
        """End an item's job as rejected or for another try, with the reason; `fault` as in `Failing.outcome`."""
        error.locate(stage, item.id)
        outcome = self._failing.outcome(item, error, fault)
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
        self.settle_all([item], outcome, counter)

    def settle_all(self, items: Sequence[Item], outcome: Outcome, counter: str | None = None) -> None:
        """End the jobs of items that end in the same way; see `settle`."""
        roots = [item if item.parent is None else item.root for item in items]
        broken: BaseException | None = None
        for root in self._admission.settle(roots, outcome, counter):
            try:
                self._say_how_it_ended(root, outcome)
            except BaseException as error:  # a source that breaks at one job is still to hear of the others
                broken = broken or error
        self._admission.note_idle()
        if broken is not None:
            raise broken

    def _say_how_it_ended(self, root: Item, outcome: Outcome) -> None:
        job = root.job
        if root.has_run and self._context.arms is not None:
            self._context.arms.note_end(root, outcome)
        job.settle(outcome)
        self._failing.left(job)
        if not self._admission.is_given_up:  # what is given back needs no order
            for reorderer in self._reorderers:
                reorderer.skip(root)
        if self._context.observers.wants["job_settled"]:
            self._context.observers.notify("job_settled", job, outcome)

    def _delivered(self, items: list[Item]) -> None:
        if self.unflushed.takes_nothing:  # until now
            for item in items:
                self._failing.succeeded(item.job)
        self.settle_all(items, DELIVERED)

    def _refused(self, item: Item, reason: str) -> None:
        # Of a table that takes nothing at all it is not known whether the row is to blame.
        fault = Fault.WORK if self.unflushed.takes_nothing else None
        self.fail(item, DeliveryRejected(reason), DELIVER, fault)


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
