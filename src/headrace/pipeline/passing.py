"""The way of items into the stages of a station and on from there, whoever runs them: a worker, or `carrying`."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.base.deadline import late
from headrace.base.errors import ClientGone
from headrace.base.parking import Bell
from headrace.base.passage import Passage
from headrace.base.policies.batching import ReleaseReason
from headrace.base.records import BatchFormed
from headrace.pipeline.connections import Connections
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.levers import Lever
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.work_notes import WorkNote
from headrace.stages.stage import Stage

#: Each item, when the queue took it (ns), and how many were in the queue then.
Arrivals = list[tuple[Item, int, int]]


class Passing:
    """That of the items of one station.

    Args:
        stages: Of the station.
        lever: The station's.
        context: Of the run.
        links: Ways out of the station.
    """

    def __init__(self, stages: Sequence[Stage], lever: Lever, context: RunContext, links: Connections) -> None:
        self._stages = stages
        self._name = stages[0].name
        self._only_delivers = stages[0].role == "deliver"
        self._ends = stages[-1].role == "deliver"
        self._lever = lever
        self._context = context
        self._links = links

    def keep_wanted(self, items: Sequence[Item], now: int) -> list[Item]:
        """Return the items that are still wanted at a time (ns); the jobs of the others have ended."""
        wanted = []
        for item in items:
            job = item.job
            deadline = job.deadline_ns
            if (item if item.parent is None else item.root).settled:
                continue  # a sibling failed, or the run was abandoned
            if job.lost and not self._only_delivers:
                self._links.drop_lost(item)
            elif job.cancelled:
                self._links.fail(item, ClientGone("client.gone: nobody waits for the answer any more"), self._name)
            elif deadline is not None and now > deadline:
                self._links.fail(item, late(deadline, now), self._name)
            else:
                wanted.append(item)
        return wanted

    def begin_tries(self, items: Sequence[Item], now: int) -> Arrivals:
        """Note that items begin at a time (ns)."""
        if self._context.observers.wants["stage_started"]:
            self._context.observers.notify("stage_started", self._name, [item.id for item in items])
        arrivals = []
        for item in items:
            if item.job.on_work is not None:
                item.job.on_work(1)
            item.error = None
            item.entry = (item.value, item.num_bytes, item.shape_key, item.flight)
            if not item.tries:
                item.first_try_ns = now
            item.tries += 1
            arrivals.append((item, item.arrived, item.queue_depth))
        return arrivals

    def find_room(self, items: Sequence[Item], bell: Bell) -> list[Item]:
        """Return the items that can be handed on without waiting; the bell is rung once there is room for more."""
        return self._links.find_room(items, bell)

    def hand_on(self, items: Sequence[Item], *, has_room: bool = False) -> tuple[list[list[StageTiming]], list[int]]:
        """Send items on their way; return the passages of each through the stages, and when it left (ns).

        Args:
            items: That went through the stages.
            has_room: Do not wait: `find_room` has found room for them.
        """
        if (passed := self._lever.passed) is not None:
            passed(items)
        # Taken before the items move on: after that the next worker may already be changing them.
        timings = []
        if not self._ends:
            self.drop(items)
        for item in items:
            job = item.job
            if job.passages is not None:
                job.passages += self._passages(item)
            timings.append(item.timings)
            item.timings = []
        left = self._links.hand_on(items, has_room)
        if self._ends:  # what ends a job, such as making its answer, is work on it too
            self.drop(items)
        return timings, left

    def drop(self, items: Sequence[Item]) -> None:
        """Note that no more is done with items here."""
        for item in items:
            if item.job.on_work is not None:
                item.job.on_work(-1)

    def note(
        self,
        worker: str,
        process_id: int,
        dequeued: int,
        arrivals: Arrivals,
        timings: list[list[StageTiming]],
        left: list[int],
    ) -> None:
        """Leave a note of which spans are made; see `WorkNote`."""
        self._links.note(WorkNote(self._stages, worker, process_id, dequeued, arrivals, timings, left))

    def tell_batch(self, items: Sequence[Item], reason: ReleaseReason | None, waited_ns: int) -> None:
        """Tell observers of the batch that items were run in, why it was closed, and for how long its oldest waited."""
        if not self._context.observers.wants["batch_formed"]:
            return
        batched = (timing for item in items for timing in item.timings if timing.batch_id is not None)
        timing = next(batched, None)  # the whole batch; parts of one that failed come after it
        if timing is not None and timing.batch_id is not None and timing.batch_size is not None:
            formed = BatchFormed(
                self._stages[timing.stage].name,
                timing.batch_id,
                timing.batch_size,
                str(reason or "idle"),
                waited_ns / 1e9,
            )
            self._context.observers.notify("batch_formed", formed)

    def _passages(self, item: Item) -> list[Passage]:
        return [Passage(self._stages[one.stage].name, one.started, one.ended, one.batch_size) for one in item.timings]
