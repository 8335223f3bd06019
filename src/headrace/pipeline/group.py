"""What one worker does with what it took: runs it through the stages that share the worker.

A group is a stage with its own queue and the inline stages after it. Items go one by one through runs of per-item stages
(the image is still in the cache when it is resized); a device stage takes all of them at once. The same code runs in a
thread and in a child process.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.clock import Clock
from headrace.base.current_job import hands
from headrace.base.deadline import note_deadline, refuse_late
from headrace.base.errors import ItemRejected, as_item_error
from headrace.base.metering import Metering, Reading, ThreadMeter
from headrace.base.policies.batching import ReleaseReason
from headrace.base.records import Job
from headrace.pipeline.batch_buffer import BatchBuffer
from headrace.pipeline.item import Item, StageTiming
from headrace.pipeline.sizes import measure
from headrace.pipeline.users_code import members_of, raise_if_of_the_run
from headrace.pipeline.warm_up import CostCurve, WarmUp, measure_curve
from headrace.stages.images import slot
from headrace.stages.stage import Stage

#: Gives each item of a batch its result.
Unpack = Callable[[], None]

#: Batch ids are unique within a process; a span carries the process too.
new_batch_id = itertools.count(1).__next__

#: What a delivery's `deliver_many` does; see `protocols.DeliversMany`.
_Together = Callable[[Sequence[tuple[Job, Any]]], Sequence[bool | Exception]]

#: What a stage's `open` returned, its index in the group, and whether it wants the job beside the value.
_Call = tuple[int, Callable[..., Any], bool]


@dataclass(frozen=True, slots=True)
class _Batch:
    stage: int
    id: int | None
    size: int | None
    reason: ReleaseReason | None


_NO_BATCH = _Batch(0, None, None, None)


class Group:
    """The opened stages of one worker.

    Args:
        stages: The stages that share the worker, in order.
        calls: What each stage's `open` returned.
        clock: Stamps the passages.
        max_batch: Largest batch that the worker takes.
        metering: Whether to read what each passage cost the thread; None: not.
        warm_up: What is measured at warm-up beyond the sizes up to `max_batch`.
        together: Does for several items what the only call does for one; None: nothing does.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        calls: Sequence[Callable[..., Any]],
        clock: Clock,
        max_batch: int,
        metering: Metering | None = None,
        warm_up: WarmUp | None = None,
        together: _Together | None = None,
    ) -> None:
        self.stages = stages
        self.process_id = os.getpid()
        self._now_ns = clock.now_ns
        self._metering = metering or Metering()
        self._meter = ThreadMeter(clock.now_ns)
        self._max_batch = max_batch
        self._warm_up = warm_up or WarmUp()
        self._buffer = BatchBuffer(max_batch)
        self._segments = _segments(stages, calls)
        self._together = together

    def run(self, items: Sequence[Item], reason: ReleaseReason | None) -> Unpack | None:
        """Run items through all stages; each then holds its value or its error, and its timings.

        Returns:
            What is still to be called before that is true, where a batch comes last: giving each item its result takes a
            while, and the device need not wait for it. None if nothing is left to do.
        """
        if self._together is not None and len(items) > 1 and all(item.job.deadline_ns is None for item in items):
            self._run_together(self._together, items)
            return None
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
                        # Without a deadline straight away, which saves a call for most items.
                        (self._run_calls if item.job.deadline_ns is None else self._run_one)(calls, item)
                if before_batch:
                    slot.array = None
        hands.items = ()
        return unpack

    def warm_up(self, item: Item, before_call: Callable[[int], object] = lambda size: None) -> CostCurve | None:
        """Run each batch size that will be used, with a real item, and return what each cost; None without a device.

        Args:
            item: Stays as it is.
            before_call: Called with the size of each batch before it is run.
        """
        device = next((calls[0] for batched, calls in self._segments if batched), None)
        if device is None:
            return None
        trial = Item(item.job, item.value, item.route)
        trial.placement, trial.flight = item.placement, item.flight
        for batched, calls in self._segments:
            if batched:
                break
            self._run_one(calls, trial)
        curve = CostCurve(self.stages[device[0]].name)

        def note(size: int) -> None:
            hands.items = (trial,) * size
            before_call(size)

        cpu_began = time.thread_time()
        if trial.error is None:
            measure_curve(
                curve,
                device[1],
                trial.value,
                buffer=self._buffer,
                max_batch=self._max_batch,
                more=self._warm_up,
                now_ns=self._now_ns,
                before_call=note,
            )
        hands.items = ()
        curve.cpu_seconds = time.thread_time() - cpu_began
        return curve

    def _run_one(self, calls: Sequence[_Call], item: Item) -> None:
        deadline = item.job.deadline_ns
        if deadline is None:
            self._run_calls(calls, item)
            return
        note_deadline(deadline)  # not `limit_to_deadline`: a context manager takes ten calls, for each item
        try:
            self._run_calls(calls, item, deadline)
        finally:
            note_deadline(None)

    def _run_calls(self, calls: Sequence[_Call], item: Item, deadline: int | None = None) -> None:
        now_ns, read = self._now_ns, self._meter.read
        value = item.value
        bytes_in = item.num_bytes
        shape_key = item.shape_key
        hands.items = (item,)
        before = read() if self._metering.on and item.weight else None  # None: wall time alone, without calls of ours
        started = now_ns() if before is None else before[0]
        for index, call, wants_job in calls:
            try:
                if deadline is not None:
                    refuse_late(deadline, started)
                value = call(item.job, value) if wants_job else call(value)
            except BaseException as error:
                raise_if_of_the_run(error)
                item.error = as_item_error(error).locate(self.stages[index].name, item.id)
                after = self._read_wall() if before is None else read()
                before = before or (started, None, None)
                item.timings.append(_timing(index, before, after, bytes_in, 0, None, _outcome(error)))
                return
            # The next stage begins where this one ends: one reading serves both.
            if before is None:
                ended = now_ns()
                bytes_out, shape_key = measure(value)
                timing = StageTiming(index, started, ended, bytes_in, bytes_out, shape_key)
                started = ended
            else:
                after = read()
                bytes_out, shape_key = measure(value)
                timing = _timing(index, before, after, bytes_in, bytes_out, shape_key)
                before, started = after, after[0]
            item.timings.append(timing)
            bytes_in = bytes_out
        item.value = value
        item.num_bytes = bytes_in
        item.shape_key = shape_key

    def _run_together(self, together: _Together, items: Sequence[Item]) -> None:
        """Run the only stage for all items at once, each with its share of the time; one by one if that fails."""
        read = self._meter.read if self._metering.on and any(item.weight for item in items) else self._read_wall
        outcomes: Sequence[Any] | np.ndarray | None = None
        hands.items = items
        before = read()
        try:
            outcomes = members_of(together([(item.job, item.value) for item in items]), len(items), self.stages[0].name)
        except BaseException as error:
            raise_if_of_the_run(error)
            outcome = _outcome(error)
        for index, (item, (started, ended)) in enumerate(zip(items, _divide(before, read(), len(items)), strict=True)):
            if outcomes is None:
                item.timings.append(_timing(0, started, ended, item.num_bytes, 0, None, outcome))
                self._run_one(self._segments[0][1], item)
            elif isinstance(outcomes[index], BaseException):
                item.error = as_item_error(outcomes[index]).locate(self.stages[0].name, item.id)
                item.timings.append(_timing(0, started, ended, item.num_bytes, 0, None, _outcome(outcomes[index])))
            else:
                item.timings.append(_timing(0, started, ended, item.num_bytes, *measure(outcomes[index])))
                item.value = outcomes[index]

    def _run_batch(self, call: _Call, items: Sequence[Item], reason: ReleaseReason) -> Unpack | None:
        index, function, _ = call
        values = [item.value for item in items]
        batch = _Batch(index, new_batch_id(), len(items), reason)
        is_metered = self._metering.on and any(item.weight for item in items)
        read = self._meter.read if is_metered else self._read_wall
        hands.items = items
        before = read()  # with the copying, here and at the end, which nothing else would show
        try:
            is_done = all(map(self.stages[index].passes, values))  # to stack and take apart would copy each twice
            inputs = values if is_done else self._buffer.stack(values)
        except Exception as error:  # no memory for so many; a batch half as large may find some
            self._split(call, items, values, error, (before, read(), batch))
            return None
        try:
            results = inputs if is_done else members_of(function(inputs), len(items), self.stages[index].name)
            results = self._buffer.detached(results)
            after = read()
        except BaseException as error:
            raise_if_of_the_run(error)
            self._split(call, items, inputs, error, (before, read(), batch))
            return None
        return functools.partial(_unpack, items, results, (before, after, batch))

    def _read_wall(self) -> Reading:
        return self._now_ns(), None, None

    def _run_part(self, call: _Call, items: Sequence[Item]) -> None:
        unpack = self._run_batch(call, items, ReleaseReason.SPLIT)
        if unpack is not None:
            unpack()

    def _split(
        self,
        call: _Call,
        items: Sequence[Item],
        inputs: Any,
        error: BaseException,
        passage: tuple[Reading, Reading, _Batch],
    ) -> None:
        # Halves, until the culprit stands alone: log2(batch) extra calls for one bad item, and the rest succeeds.
        before, after, batch = passage
        for item in items:
            item.timings.append(_timing(call[0], before, after, item.num_bytes, 0, None, _outcome(error), batch))
        if len(items) == 1:
            items[0].error = as_item_error(error).locate(self.stages[call[0]].name, items[0].id)
            return
        for item, value in zip(items, inputs, strict=True):
            # One that was written in place may have been moved forward, and is overwritten when the parts are stacked.
            item.value = self._buffer.detached(value if self._buffer.holds(item.value) else item.value)
        half = len(items) // 2
        self._run_part(call, items[:half])
        self._run_part(call, items[half:])


def _divide(before: Reading, after: Reading, count: int) -> Iterator[tuple[Reading, Reading]]:
    """Yield the readings at which each of `count` equal shares of the time between two begins and ends."""

    def at(index: int) -> Reading:
        wall, cpu, delay = (
            None if first is None or last is None else first + (last - first) * index // count
            for first, last in zip(before, after, strict=True)
        )
        return wall or 0, cpu, delay

    return itertools.pairwise(map(at, range(count + 1)))


def _timing(
    stage: int,
    before: Reading,
    after: Reading,
    bytes_in: int,
    bytes_out: int,
    shape_key: str | None,
    outcome: str = "ok",
    batch: _Batch = _NO_BATCH,
) -> StageTiming:
    cpu = None if before[1] is None or after[1] is None else after[1] - before[1]
    run_delay = None if before[2] is None or after[2] is None else after[2] - before[2]
    return StageTiming(
        stage,
        before[0],
        after[0],
        bytes_in,
        bytes_out,
        shape_key,
        outcome,
        batch.id,
        batch.size,
        batch.reason,
        cpu,
        run_delay,
    )


def _unpack(items: Sequence[Item], results: Sequence[Any], passage: tuple[Reading, Reading, _Batch]) -> None:
    before, after, batch = passage
    for item, result in zip(items, results, strict=True):
        num_bytes, shape_key = measure(result)
        item.timings.append(_timing(batch.stage, before, after, item.num_bytes, num_bytes, shape_key, "ok", batch))
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


def _outcome(error: BaseException) -> str:
    return "rejected" if isinstance(error, ItemRejected) else "failed"
