"""What loading one batch cost, as spans whose unit is `BATCH`; see `runs.training_phases`."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.records import Span
from headrace.runs.training_phases import BATCH, LoaderWork
from headrace.train.loader_record import BatchRecord, Cost

_HOST = socket.gethostname()


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """A batch that the loop got, and what it cost where it was loaded."""

    record: BatchRecord
    worker: int
    """-1: the thread that trains loaded it."""
    asked: int
    """When the loop asked for it, ns on the clock of the host."""
    taken: int
    """When the loop got it."""


class LoadSpans(Sequence[Span]):
    """The spans of one batch, made when they are iterated over: in the writer's thread.

    Args:
        batch: What was measured.
        number: Of the batch, among those that this process got.
        step: That used it; None if no step did, or none is known.
        rank: Of the process that trains.
    """

    def __init__(self, batch: LoadedBatch, number: int, step: int | None, rank: int) -> None:
        self._batch, self._number, self._step, self._rank = batch, number, step, rank
        record = batch.record
        parts = [
            (LoaderWork.DECODE, record.decode),
            (LoaderWork.AUGMENT, record.augment),
            (LoaderWork.TOKENISE, record.tokenise),
            (LoaderWork.OPEN, _without_blocked(record.opened)),
            (LoaderWork.READ, Cost(record.rest.blocked + record.opened.blocked, 0, 0)),
        ]
        self._parts = [(stage, cost) for stage, cost in parts if cost.wall > 0]

    def __len__(self) -> int:
        return len(self._parts) + 3

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Span]:
        record, batch = self._batch.record, self._batch
        yield self._span(LoaderWork.ITEMS, record.begun, record.items, num_bytes=0)
        yield self._span(LoaderWork.COLLATE, record.collated, record.collate, num_bytes=record.num_bytes)
        waited = max(batch.taken - record.ended, 0)
        yield self._span(LoaderWork.SEND, record.ended, Cost(waited, record.other_cpu, 0), num_bytes=record.num_bytes)
        for stage, cost in self._parts:
            yield self._span(stage, record.begun, cost, num_bytes=0)

    def _span(self, stage: LoaderWork, started: int, cost: Cost, *, num_bytes: int) -> Span:
        record, batch = self._batch.record, self._batch
        return Span(
            unit=BATCH,
            unit_id=str(self._number),
            parent_id=None if self._step is None else str(self._step),
            stage=stage,
            plan_id="",
            host=_HOST,
            process=record.process,
            thread="train" if batch.worker < 0 else f"worker {batch.worker}",
            rank=self._rank,
            attempt=1,
            outcome="failed" if record.failed else "ok",
            arrived=batch.asked,
            dequeued=started,
            started=started,
            ended=started + cost.wall,
            put=batch.taken,
            cpu=cost.cpu,
            run_delay=None if cost.delay < 0 else cost.delay,
            batch_id=record.number,
            batch_size=record.num_items,
            release_reason=None,
            queue_depth=0,
            bytes_in=0,
            bytes_out=num_bytes,
            shape_key=None,
        )


def _without_blocked(cost: Cost) -> Cost:
    return Cost(cost.wall - cost.blocked, cost.cpu, cost.delay)
