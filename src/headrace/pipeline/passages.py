"""What a worker did with the items it took: noted by the worker, made into spans by the bookkeeper."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.records import Span
from headrace.pipeline.item import Item, Mark
from headrace.stages.stage import Stage

_HOST = socket.gethostname()


@dataclass(slots=True)
class Passage:
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
    marks: Sequence[Sequence[Mark]]
    """For each item its passages through the stages, in order."""
    left: Sequence[int]
    """For each item when the next queue took it, or when it was settled, ns."""

    def spans(self, plan_id: str) -> list[Span]:
        """Return one span for each item and stage."""
        spans: list[Span] = []
        for (item, arrived, queue_depth), marks, left in zip(self.arrivals, self.marks, self.left, strict=True):
            parent_id = item.parent.id if item.parent else None
            dequeued = self.dequeued
            for mark in marks:
                # An inline stage has no queue: its item arrives, is taken and begins when the stage before it ends.
                spans.append(
                    Span(
                        "item",
                        item.id,
                        parent_id,
                        self.stages[mark.stage].name,
                        plan_id,
                        _HOST,
                        self.process_id,
                        self.worker,
                        0,
                        item.job.attempt,
                        mark.outcome,
                        arrived,
                        dequeued,
                        mark.started,
                        mark.ended,
                        mark.ended,
                        mark.cpu,
                        mark.run_delay,
                        mark.batch_id,
                        mark.batch_size,
                        mark.reason,
                        queue_depth,
                        mark.bytes_in,
                        mark.bytes_out,
                        mark.shape_key,
                        item.weight,
                    )
                )
                arrived = dequeued = mark.ended
                queue_depth = 0
            if marks:
                spans[-1].put = max(left, spans[-1].ended)
        return spans
