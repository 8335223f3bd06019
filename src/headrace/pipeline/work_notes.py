"""What a worker did with the items it took: noted by the worker, made into spans by the bookkeeper."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.records import Span
from headrace.pipeline.item import Item, StageTiming
from headrace.stages.stage import Stage

_HOST = socket.gethostname()


@dataclass(slots=True)
class WorkNote:
    """One time that a worker took items, ran them and handed them on."""

    stages: Sequence[Stage]
    """The stages of the worker's group."""
    worker: str
    process_id: int
    """Where the stages ran."""
    dequeued: int
    """When the worker took the items, ns."""
    arrivals: Sequence[tuple[Item, int, int]]
    """Each item, when the queue took it (ns), and how many were in the queue then."""
    timings: Sequence[Sequence[StageTiming]]
    """For each item its passages through the stages, in order."""
    left: Sequence[int]
    """For each item when the next queue took it, or when it was settled, ns."""

    def spans(self, plan_id: str, unit: str, *, recorded_only: bool = False) -> list[Span]:
        """Return one span for each stage and item, or for each recorded item; `unit` is what a whole job is called."""
        spans: list[Span] = []
        for (item, arrived, queue_depth), timings, left in zip(self.arrivals, self.timings, self.left, strict=True):
            if recorded_only and not item.weight:
                continue
            parent_id = item.parent.id if item.parent else None
            dequeued = self.dequeued
            plan = plan_id if item.arm is None else item.arm.plan_id
            marks = {} if item.flight is None else item.flight.marks
            for timing in timings:
                stage = self.stages[timing.stage].name
                # An inline stage has no queue: its item arrives, is taken and begins when the stage before it ends.
                spans.append(
                    Span(
                        unit if parent_id is None else "item",
                        item.id,
                        parent_id,
                        stage,
                        plan,
                        _HOST,
                        self.process_id,
                        self.worker,
                        0,
                        item.job.attempt,
                        timing.outcome,
                        arrived,
                        dequeued,
                        timing.started,
                        timing.ended,
                        timing.ended,
                        timing.cpu,
                        timing.run_delay,
                        timing.batch_id,
                        timing.batch_size,
                        timing.reason,
                        queue_depth,
                        timing.bytes_in,
                        timing.bytes_out,
                        timing.shape_key,
                        item.weight,
                        marks.get(stage),
                    )
                )
                arrived = dequeued = timing.ended
                queue_depth = 0
            if timings:
                spans[-1].put = max(left, spans[-1].ended)
        return spans
