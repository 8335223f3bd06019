"""Workers of one stage, opened once, that run it side by side for a while whenever they are told to.

How this works: each worker is a thread that opens the stage (with the process executor: a process) and waits for orders. For a
stretch the first so many of them run inputs one after another: no queue, nothing before and nothing behind, so that what they
reach is what the stage can do. The first call of each does not count. When all have made it, the thread that gave the order
sets the window in which throughput is counted; each worker goes on until the window's end has passed. Each reads its own clocks
after its first and after its last call, and what a call cost is taken from all calls between. The CPU time of threads that the
stage's libraries started is read by the thread that gave the order, at both ends of the window.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.base.policies.batching import ReleaseReason
from headrace.pipeline.item import Item
from headrace.pipeline.station import RunsItems
from headrace.profiler.isolation.bench import Bench, close
from headrace.profiler.isolation.curves import Measured
from headrace.profiler.isolation.inputs import Given
from headrace.profiler.isolation.schedstat import TaskTimes, cpu_seconds_of, task_times, threads_of
from headrace.profiler.isolation.values import kept
from headrace.stages.stage import Stage

#: How soon the one who gave an order heeds a stop.
_POLL_SECONDS = 0.05
#: How long workers may take over the call in their hands once they were told to stop; then they are left behind (daemons).
_LEAVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker did."""

    num_items: int
    num_failed: int
    num_calls: int
    num_in_window: float
    wall_seconds: float
    cpu_seconds: float
    run_delay_seconds: float | None
    error: str


@dataclass(slots=True)
class _Order:
    """A stretch that workers were told to run."""

    batches: Sequence[Sequence[Given]]
    seconds: float
    num_workers: int
    is_device: bool
    copies: bool
    ready: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    window: tuple[float, float] | None = None
    """Start and end, seconds of time.monotonic; None until all workers are ready."""
    stopped: bool = False
    answers: queue.SimpleQueue[Share | BaseException] = field(default_factory=queue.SimpleQueue)


class Crew:
    """Opened workers of one stage; a context manager.

    Args:
        bench: The pipeline.
        stage: What they run.
        size: How many.
        stop: Asked while waiting; True ends it soon.

    Attributes:
        num_workers: How many could be opened; fewer than asked for where `error` says why.
        error: What the first of those said that could not be opened.

    Raises:
        Exception: What opening raised, if not even the first worker could be opened.
    """

    def __init__(self, bench: Bench, stage: Stage, size: int, stop: Callable[[], bool]) -> None:
        self._bench = bench
        self._stage = stage
        self._stop = stop
        self._threads_before = threads_of(os.getpid())
        self._opened: queue.SimpleQueue[_Worker | Exception] = queue.SimpleQueue()
        self._order: _Order | None = None
        self._all = [_Worker(bench, stage, number) for number in range(size)]
        for worker in self._all:
            worker.start(self._opened)
        found = [self._opened.get() for _ in self._all]
        errors = [one for one in found if isinstance(one, Exception)]
        self._workers = [one for one in found if isinstance(one, _Worker)]
        self.num_workers = len(self._workers)
        self.error = str(errors[0]) if errors else ""
        if not self._workers:
            raise errors[0]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._order is not None:
            self._order.stopped = True  # it is over already, unless something was raised here
        for worker in self._workers:
            worker.orders.put(None)
        end = time.monotonic() + _LEAVE_SECONDS
        for worker in self._workers:
            worker.thread.join(max(0.0, end - time.monotonic()))
            if worker.thread.is_alive():
                worker.kill()

    def run(
        self, batches: Sequence[Sequence[Given]], num_workers: int, seconds: float, *, copies: bool = False
    ) -> Measured | None:
        """Run batches round and round for a while, and return what was measured; None if it was stopped.

        Args:
            batches: Inputs: one by one, or for a device as many as a batch holds; at least one.
            num_workers: How many run side by side, at most `self.num_workers`.
            seconds: For so long; each worker makes at least one call.
            copies: Give each call a copy of its inputs: the stage changes them.
        """
        order = self._order = _Order(batches, seconds, num_workers, self._stage.kind == "device", copies)
        for worker in self._workers[:num_workers]:
            worker.orders.put(order)
        if not self._await_ready(order):
            return None
        native = self._native_threads()
        before = cpu_seconds_of(native)
        started = time.monotonic()
        order.window = (started, started + seconds)
        while (left := order.window[1] - time.monotonic()) > 0 and not self._stop():
            time.sleep(min(left, _POLL_SECONDS))
        after = cpu_seconds_of(native)
        native_cpu = sum(after[task] - seconds_before for task, seconds_before in before.items() if task in after)
        shares = self._await(order)
        return None if shares is None else added(shares, native_cpu, order)

    def _await_ready(self, order: _Order) -> bool:
        for _ in range(order.num_workers):
            while not order.ready.acquire(timeout=_POLL_SECONDS):
                if self._stop():
                    order.stopped = True
                    return False
        return True

    def _await(self, order: _Order) -> list[Share] | None:
        shares: list[Share] = []
        give_up_at = float("inf")
        while len(shares) < order.num_workers:
            if self._stop() and not order.stopped:
                order.stopped = True
                give_up_at = time.monotonic() + _LEAVE_SECONDS
            try:
                answer = order.answers.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if time.monotonic() > give_up_at:
                    return None
                continue
            if isinstance(answer, BaseException):
                order.stopped = True  # the others need not go on
                raise answer
            shares.append(answer)
        return None if order.stopped else shares

    def _native_threads(self) -> list[tuple[int, int]]:
        """Return (process, thread) of all threads that came with the stage, without those that make the calls."""
        here = os.getpid()
        callers = {worker.thread.native_id for worker in self._all}
        native = [(here, thread) for thread in threads_of(here) - self._threads_before - callers]
        for worker in self._workers:
            child = worker.process_id
            if child != here:
                native += [(child, thread) for thread in threads_of(child) - {child}]
        return native


class _Worker:
    def __init__(self, bench: Bench, stage: Stage, number: int) -> None:
        self._bench = bench
        self._stage = stage
        self._number = number
        self._group: RunsItems | None = None
        self.orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._live, name=f"alone-{stage.name}-{number}", daemon=True)
        self._opened: queue.SimpleQueue[_Worker | Exception] = queue.SimpleQueue()

    @property
    def process_id(self) -> int:
        """Where the stage runs."""
        return os.getpid() if self._group is None else self._group.process_id

    def start(self, opened: queue.SimpleQueue[_Worker | Exception]) -> None:
        """Begin to open the stage; the worker, or why it could not, goes to `opened`."""
        self._opened = opened
        self.thread.start()

    def kill(self) -> None:
        """End its process, if it has one, from another thread."""
        end = getattr(self._group, "kill", None)
        if end is not None:
            end()

    def _live(self) -> None:
        try:
            group = self._group = self._bench.open(self._stage, self._number)
        except Exception as error:  # a user's own code, such as Module.load
            self._opened.put(error)
            return
        self._opened.put(self)
        try:
            while (order := self.orders.get()) is not None:
                try:
                    order.answers.put(self._carry_out(order, group))
                except BaseException as error:
                    order.ready.release()
                    order.answers.put(error)
        finally:
            close(group)

    def _carry_out(self, order: _Order, group: RunsItems) -> Share:
        batches = order.batches
        # Workers begin at different places, so that they do not work on the same input at the same time.
        place = self._number * len(batches) // max(1, order.num_workers)
        run_batch = _caller(order, group)
        run_batch(batches[place % len(batches)])  # the first call pays for allocation and caches, and does not count
        order.ready.release()
        tasks = self._tasks()
        before = [task_times(*task) for task in tasks]
        cpu_before = time.thread_time()
        tally = Tally(time.monotonic())
        while not order.stopped and not tally.is_past(order.window):
            place += 1
            tally.add(run_batch(batches[place % len(batches)]), time.monotonic(), order.window)
        own_cpu = time.thread_time() - cpu_before
        cpu, run_delay = _difference(before, [task_times(*task) for task in tasks])
        return tally.share(own_cpu + cpu, run_delay)

    def _tasks(self) -> list[tuple[int, int]]:
        """Return this thread and, where the stage runs in a process, that one's main thread."""
        here = (os.getpid(), threading.get_native_id())
        return [here] if self.process_id == here[0] else [here, (self.process_id, self.process_id)]


class Tally:
    """Counts what one worker does, and how much of it lies in the window that all workers have in common.

    A call counts by the part of it that lies in the window. Were each worker to be counted from the start of a call to the end
    of one, then workers that take turns at a lock would all seem to have one turn more than time allows.

    Args:
        started: When the first call that counts began, seconds of time.monotonic.
    """

    def __init__(self, started: float) -> None:
        self._started = self._last = started
        self._num_items = self._num_failed = self._num_calls = 0
        self._num_in_window = 0.0
        self._error = ""

    def is_past(self, window: tuple[float, float] | None) -> bool:
        """Return whether the last call ended after the window did, if there is one yet; not before a call is done."""
        return window is not None and self._num_calls > 0 and self._last >= window[1]

    def add(self, items: Sequence[Item], now: float, window: tuple[float, float] | None) -> None:
        """Count one call that ended now; it began where the one before ended."""
        failed = [item for item in items if item.error is not None]
        done = len(items) - len(failed)
        if window is not None and now > self._last:
            inside = max(0.0, min(now, window[1]) - max(self._last, window[0]))
            self._num_in_window += done * inside / (now - self._last)
        self._num_calls += 1
        self._num_items += done
        self._num_failed += len(failed)
        self._error = self._error or (str(failed[0].error) if failed else "")
        self._last = now

    def share(self, cpu_seconds: float, run_delay_seconds: float | None) -> Share:
        """Return what was counted."""
        return Share(
            self._num_items,
            self._num_failed,
            self._num_calls,
            self._num_in_window,
            self._last - self._started,
            cpu_seconds,
            run_delay_seconds,
            self._error,
        )


def _caller(order: _Order, group: RunsItems) -> Callable[[Sequence[Given]], list[Item]]:
    reason = ReleaseReason.FULL if order.is_device else None

    def run_batch(given: Sequence[Given]) -> list[Item]:
        values = [kept(one.value) for one in given] if order.copies else [one.value for one in given]
        items = [Item(one.job, value, ()) for one, value in zip(given, values, strict=True)]
        unpack = group.run(items, reason)
        if unpack is not None:
            unpack()
        return items

    return run_batch


def _difference(before: Sequence[TaskTimes | None], after: Sequence[TaskTimes | None]) -> tuple[float, float | None]:
    """Return the CPU seconds of all tasks but the first, whose clock is exact, and the run-queue delay of all."""
    if any(times is None for times in (*before, *after)):
        return 0.0, None
    pairs = [(early, late) for early, late in zip(before, after, strict=True) if early is not None and late is not None]
    cpu = sum(late.cpu_ns - early.cpu_ns for early, late in pairs[1:])
    return cpu / 1e9, sum(late.run_delay_ns - early.run_delay_ns for early, late in pairs) / 1e9


def added(shares: Sequence[Share], native_cpu_seconds: float, order: _Order) -> Measured:
    """Return what all workers did together.

    Args:
        shares: Of each worker.
        native_cpu_seconds: CPU time of the libraries' threads in the window.
        order: What they were told to do.
    """
    delays = [share.run_delay_seconds for share in shares if share.run_delay_seconds is not None]
    num_items = sum(share.num_items for share in shares)
    in_window = sum(share.num_in_window for share in shares)
    # Workers are measured over whole calls, a little longer than the window.
    native = native_cpu_seconds * num_items / in_window if in_window else native_cpu_seconds
    return Measured(
        workers=order.num_workers,
        batch_size=len(order.batches[0]) if order.is_device else None,
        num_items=num_items,
        num_failed=sum(share.num_failed for share in shares),
        num_calls=sum(share.num_calls for share in shares),
        throughput=in_window / order.seconds,
        wall_seconds=sum(share.wall_seconds for share in shares),
        cpu_seconds=sum(share.cpu_seconds for share in shares) + native,
        native_cpu_seconds=native,
        run_delay_seconds=sum(delays) if len(delays) == len(shares) else None,
        error=next((share.error for share in shares if share.error), ""),
    )
