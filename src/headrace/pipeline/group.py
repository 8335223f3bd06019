"""What one worker does with what it took: runs it through the stages that share the worker.

A group is a stage with its own queue and the inline stages after it. Items go one by one through runs of per-item stages
(the image is still in the cache when it is resized); a device stage takes all of them at once. The same code runs in a
thread and in a child process.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.clock import Clock
from headrace.base.errors import ItemRejected, as_item_error
from headrace.base.policies.batching import ReleaseReason, warm_up_sizes
from headrace.pipeline.batch_buffer import BatchBuffer
from headrace.pipeline.item import Item, Mark, measure
from headrace.stages.images import slot
from headrace.stages.module import checked_results
from headrace.stages.stage import Stage

#: Gives each item of a batch its result.
Unpack = Callable[[], None]

#: Batch ids are unique within a process; a span carries the process too.
new_batch_id = itertools.count(1).__next__

#: What a stage's `open` returned, its index in the group, and whether it wants the job beside the value.
_Call = tuple[int, Callable[..., Any], bool]


@dataclass(slots=True)
class CostCurve:
    """Measured seconds per call by batch size."""

    stage: str
    seconds: dict[int, float] = field(default_factory=dict)


class Group:
    """The opened stages of one worker.

    Args:
        stages: The stages that share the worker, in order.
        calls: What each stage's `open` returned.
        clock: Stamps the passages.
        max_batch: Largest batch that the worker takes.
    """

    def __init__(
        self, stages: Sequence[Stage], calls: Sequence[Callable[..., Any]], clock: Clock, max_batch: int
    ) -> None:
        self.stages = stages
        self.process_id = os.getpid()
        self._now_ns = clock.now_ns
        self._max_batch = max_batch
        self._buffer = BatchBuffer(max_batch)
        self._segments = _segments(stages, calls)

    def run(self, items: Sequence[Item], reason: ReleaseReason | None) -> Unpack | None:
        """Run items through all stages; each then holds its value or its error, and its marks.

        Returns:
            What is still to be called before that is true, where a batch comes last: giving each item its result takes a
            while, and the device need not wait for it. None if nothing is left to do.
        """
        unpack = None
        for batched, calls in self._segments:
            if unpack is not None:
                unpack()
                unpack = None
            if batched:
                live = [item for item in items if item.error is None]
                if live:
                    unpack = self._run_batch(calls[0], live, reason or ReleaseReason.IDLE)
            else:
                before_batch = len(self._segments) > 1 and calls[0][0] == 0
                for index, item in enumerate(items):
                    if item.error is None:
                        if before_batch:
                            self._buffer.reserve(index)
                        self._run_one(calls, item)
                if before_batch:
                    slot.array = None
        return unpack

    def warm_up(self, item: Item) -> CostCurve | None:
        """Run each batch size that will be used, with a real item, and return what each cost; None without a device.

        The first call of a size pays for allocation and compilation and is not counted.
        """
        device = next((calls[0] for batched, calls in self._segments if batched), None)
        if device is None:
            return None
        trial = Item(item.job, item.value, item.route)
        for batched, calls in self._segments:
            if batched:
                break
            self._run_one(calls, trial)
        curve = CostCurve(self.stages[device[0]].name)
        if trial.error is not None:
            return curve
        for size in warm_up_sizes(self._max_batch):
            inputs = self._buffer.stack([trial.value] * size)
            try:
                device[1](inputs)
                started = self._now_ns()
                device[1](inputs)
            except Exception:  # the item may be a bad one; the real batch will tell
                return curve
            curve.seconds[size] = (self._now_ns() - started) / 1e9
        return curve

    def _run_one(self, calls: Sequence[_Call], item: Item) -> None:
        now_ns = self._now_ns
        value = item.value
        bytes_in = item.num_bytes
        shape_key = item.shape_key
        for index, call, wants_job in calls:
            started = now_ns()
            try:
                value = call(item.job, value) if wants_job else call(value)
            except Exception as error:
                item.error = as_item_error(error).located(self.stages[index].name, item.id)
                item.marks.append(Mark(index, started, now_ns(), bytes_in, 0, None, _outcome(error)))
                return
            ended = now_ns()
            bytes_out, shape_key = measure(value)
            item.marks.append(Mark(index, started, ended, bytes_in, bytes_out, shape_key))
            bytes_in = bytes_out
        item.value = value
        item.num_bytes = bytes_in
        item.shape_key = shape_key

    def _run_batch(self, call: _Call, items: Sequence[Item], reason: ReleaseReason) -> Unpack | None:
        index, function, _ = call
        inputs = self._buffer.stack([item.value for item in items])
        batch_id = new_batch_id()
        started = self._now_ns()
        try:
            results = checked_results(function(inputs), len(items), self.stages[index].name)
            ended = self._now_ns()
            results = self._buffer.detached(results)
        except Exception as error:
            self._split(call, items, inputs, error, (started, self._now_ns(), batch_id, reason))
            return None
        return functools.partial(_unpack, items, results, (index, started, ended, batch_id, reason))

    def _run_part(self, call: _Call, items: Sequence[Item]) -> None:
        unpack = self._run_batch(call, items, ReleaseReason.SPLIT)
        if unpack is not None:
            unpack()

    def _split(
        self,
        call: _Call,
        items: Sequence[Item],
        inputs: Any,
        error: Exception,
        passage: tuple[int, int, int, ReleaseReason],
    ) -> None:
        # Halves, until the culprit stands alone: log2(batch) extra calls for one bad item, and the rest succeeds.
        started, ended, batch_id, reason = passage
        for item in items:
            item.marks.append(
                Mark(call[0], started, ended, item.num_bytes, 0, None, _outcome(error), batch_id, len(items), reason)
            )
        if len(items) == 1:
            items[0].error = as_item_error(error).located(self.stages[call[0]].name, items[0].id)
            return
        for item, value in zip(items, inputs, strict=True):
            # One that was written in place may have been moved forward, and is overwritten when the parts are stacked.
            item.value = self._buffer.detached(value if self._buffer.holds(item.value) else item.value)
        half = len(items) // 2
        self._run_part(call, items[:half])
        self._run_part(call, items[half:])


def _unpack(items: Sequence[Item], results: Sequence[Any], passage: tuple[int, int, int, int, ReleaseReason]) -> None:
    index, started, ended, batch_id, reason = passage
    for item, result in zip(items, results, strict=True):
        num_bytes, shape_key = measure(result)
        item.marks.append(
            Mark(index, started, ended, item.num_bytes, num_bytes, shape_key, "ok", batch_id, len(items), reason)
        )
        item.value = result
        item.num_bytes = num_bytes
        item.shape_key = shape_key


def _segments(stages: Sequence[Stage], calls: Sequence[Callable[..., Any]]) -> list[tuple[bool, list[_Call]]]:
    segments: list[tuple[bool, list[_Call]]] = []
    for index, (stage, call) in enumerate(zip(stages, calls, strict=True)):
        batched = stage.kind == "device"
        entry = (index, call, stage.role == "deliver")
        if segments and not batched and not segments[-1][0]:
            segments[-1][1].append(entry)
        else:
            segments.append((batched, [entry]))
    return segments


def _outcome(error: Exception) -> str:
    return "rejected" if isinstance(error, ItemRejected) else "failed"
