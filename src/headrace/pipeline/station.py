"""A station: one queue, the workers that live on it, and the group of stages that each worker runs.

How this works: a worker takes items (a device worker a batch), runs its group, hands the items on, and leaves a note of what
it did, of which the bookkeeper makes spans: a device is not to wait for bookkeeping. Cheap items are taken several at a
time, so that the hand-off does not cost more than the work; a worker never takes more than its fair share of the queue.
A station whose first stage is inline has no queue and no workers: the receiver runs it. Neither has one that takes no time at
all, such as a reply: whoever brings its items runs it. Where the Plan says `events`, the run's one thread for that carries the
calls of all workers; see `carrying`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.base.errors import ItemFailed
from headrace.base.parking import Bell
from headrace.base.plan import Plan
from headrace.base.policies.batching import BatchingPolicy, ReleaseReason
from headrace.base.policies.retry import RetryPolicy
from headrace.base.policies.shares import Call
from headrace.base.records import StageStatistics
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.bulkheads import Bulkheads
from headrace.pipeline.carrying import Carrying
from headrace.pipeline.connections import Connections
from headrace.pipeline.finisher import Finisher
from headrace.pipeline.group import Unpack
from headrace.pipeline.item import Item, Orders
from headrace.pipeline.levers import Adjustable, Lever
from headrace.pipeline.opening import GroupSpec, open_group
from headrace.pipeline.passing import Arrivals, Passing
from headrace.pipeline.remote import RemoteGroup
from headrace.pipeline.resources import Claim
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.taking import Taking
from headrace.pipeline.warmth import Warmth
from headrace.pipeline.worker import RECEIVER, RunsItems, Worker


class Leaves(Protocol):
    """What is to leave at the end, such as a `threading.Thread`."""

    def is_alive(self) -> bool:
        """Return whether it has not left yet."""
        ...

    def join(self, timeout: float) -> None:
        """Wait until it has left, or for so many seconds."""
        ...


@dataclass(slots=True)
class Served:
    """What a worker ran and is still to hand on."""

    items: list[Item]
    arrivals: Arrivals
    dequeued: int
    """When the worker took them, ns."""
    process_id: int
    """Where they ran."""
    unpack: Unpack | None
    """What gives the items their results; see `Group.run`."""
    reason: ReleaseReason | None
    waited_ns: int
    """Age of the oldest item in the queue."""
    ran_ns: int = 0
    """Time in the stages."""


class Station:
    """One queue and its workers; `connect` it before it works.

    Args:
        context: Of the run.
        spec: The stages of this station, with the resolved Plan; `spec.worker` is the first worker's number.
        has_queue: False for the station that the receivers run themselves, and for those that run in place.
        runs_in_place: Whether whoever brings items runs them.
    """

    _links: Connections
    _passing: Passing
    _taking: Taking

    def __init__(self, context: RunContext, spec: GroupSpec, *, has_queue: bool, runs_in_place: bool = False) -> None:
        self._context = context
        self._clock = context.clock
        self._spec = spec
        self.stages = spec.stages
        self.name = spec.stages[0].name
        self.settings = spec.plan.stages[self.name]
        self.last_role = spec.stages[-1].role
        # Whoever comes here has a result already. It is sent even if the loan ran out meanwhile: whoever has the job now may
        # be as late, and the receiver knows the id.
        self.only_delivers = spec.stages[0].role == "deliver"
        self.has_queue = has_queue
        self.runs_in_place = runs_in_place
        self.reorderer: Orders | None = None
        self.keeps_streams = any(stage.keeps_streams for stage in spec.stages)
        self._is_in_order = self.keeps_streams or (spec.plan.run.ordered and self.last_role == "deliver")
        self._in_place = threading.local()
        # Where there is no queue to come back to, or where coming back would break the order.
        self.retries_in_place = not has_queue or self._is_in_order
        device = next((stage for stage in spec.stages if stage.kind == "device"), None)
        self.device_name = device.name if device else None
        # Stages behind the call would hold up all calls, and so would a try in place.
        self._may_carry = self.settings.executor == "events" and len(spec.stages) == 1 and not self.retries_in_place
        self._carrying: Carrying | None = None
        self.counts: list[dict[str, int]] = []
        self.queue, self._bulkheads = self._make_queue()
        self._takes_batches = device is spec.stages[0] and spec.max_batch > 1
        self.retry = RetryPolicy(
            max_attempts=self.settings.attempts or 1, budget_seconds=self.settings.retry_budget_seconds
        )
        self.workers: list[Worker] = []
        self.threads: list[threading.Thread] = []
        self._num_places = 0
        self.variants: list[list[dict[str, Any]]] = []
        self.lever: Lever = context.levers.add(self.name, self._look_at_lever)
        self.warmth = Warmth(context, spec, self.lever)

    def connect(self, links: Connections) -> None:
        """Let the station know the run that it is part of."""
        self._links = links
        self._passing = Passing(self.stages, self.lever, self._context, links)
        self._taking = Taking(self, self._context, links, self._passing, self._make_policy())

    def _make_queue(self) -> tuple[BoundedQueue, Bulkheads | None]:
        # In order, one that waits holds back those behind it whatever is done, and none may be turned away.
        is_ordered = self.keeps_streams or self._spec.plan.run.ordered
        if not Bulkheads.are_of_use(self.stages) or not self.has_queue or is_ordered:
            bounds = self.settings.queue_items or 1, self.settings.queue_bytes or 1
            return BoundedQueue(*bounds, self._clock, is_in_order=self._is_in_order), None
        counts: dict[str, int] = {}
        self.counts.append(counts)
        bulkheads = Bulkheads(
            self.stages,
            self.settings,
            self._clock,
            counts,
            fail=lambda item, error, stage: self._links.fail(item, error, stage),
            start_worker=lambda number: self._links.start_worker(number),
        )
        return bulkheads.queue, bulkheads

    def _make_policy(self) -> BatchingPolicy | None:
        if self.device_name is None:
            return None
        plan = self._spec.plan.stages[self.device_name]
        return BatchingPolicy(max_size=plan.batch or 1, max_wait_ns=int(plan.max_wait_seconds * 1e9))

    def _look_at_lever(self) -> None:
        if self._carrying is not None:
            self._carrying.wake()

    def adjustable(self) -> Adjustable:
        """Return what of the station an experiment may change."""
        # Spare workers must need no model of their own, and no other part may count them.
        may_have_spares = self.has_queue and self.device_name is None and self._bulkheads is None
        is_process = self.settings.executor == "process"
        return Adjustable(
            lever=self.lever,
            stages=tuple(stage.name for stage in self.stages),
            num_workers=self.num_workers,
            max_batch=(self.settings.batch or 1) if self._takes_batches else 1,
            has_workers=self.has_queue,
            may_delay=self.has_queue and self._carrying is None,
            is_last=self.last_role == "deliver",
            add_spares=self._add_spares if may_have_spares and not (is_process or self.retries_in_place) else None,
        )

    def _add_spares(self, count: int) -> None:
        """Start workers beyond the Plan's, which the lever lets work for a while, and which leave at the end."""
        self.lever.expect_spares(self.num_workers, count)
        if self._carrying is None:
            for number in range(self.num_workers, self.num_workers + count):
                self._links.start_worker(number)

    @property
    def bulkheads(self) -> Bulkheads | None:
        """What shares its workers out among those they wait on; None where they wait on nobody, or on one."""
        return self._bulkheads

    @property
    def max_batch(self) -> int:
        """Items that one worker has in hand at most, where it takes batches; else 1."""
        return self._spec.max_batch

    @property
    def num_busy(self) -> int:
        """Workers that have something in hand."""
        return sum(1 for worker in self.workers if worker.busy_since)

    @property
    def pace(self) -> int | None:
        """How soon a call of its workers counts as hung: 0 soon, 1 late, None never.

        What waits on the outside may wait for long, and its stages have timeouts of their own; a process of its own may have
        to be started again within a call, and so may a model be warmed up.
        """
        if not self.warmth.is_there:
            return None
        waits = any(stage.kind == "io" and not stage.is_instant for stage in self.stages)
        if waits and self.device_name is None:
            return None
        return int(waits or self.settings.executor == "process")

    @property
    def shared(self) -> Mapping[str, Mapping[str, Any]]:
        """By stage, what its workers in this process share."""
        return self._spec.shared

    @property
    def num_workers(self) -> int:
        """Workers that the Plan asks for."""
        if self.runs_in_place:
            return 1
        return (self.settings.workers or 1) if self.has_queue else self._spec.plan.source.receivers

    @property
    def most_workers(self) -> int:
        """Workers that it had at most: those of the Plan, and those in the places of others that waited for a slow call.

        One that runs in place has as many as threads brought items.
        """
        if self.runs_in_place:
            return max(1, len(self.workers))
        if self._bulkheads is None:
            return self.num_workers + self.lever.num_spare
        return self._bulkheads.num_threads

    @property
    def num_threads(self) -> int:
        """Threads that its workers need, as far as that is known: whether one can carry all calls shows when it is open."""
        return 1 if self._may_carry else self.num_workers

    @property
    def carrying(self) -> Carrying | None:
        """How one thread carries the calls of all workers; None where they have threads."""
        return self._carrying

    @property
    def leaving(self) -> Sequence[Leaves]:
        """What leaves once the queue is closed and empty."""
        return self.threads if self._carrying is None else [self._carrying]

    def open_worker(self, number: int) -> Worker:
        """Open the group of one worker, in this thread or in a child process."""
        spec = dataclasses.replace(self._spec, worker=number)
        group: RunsItems
        counts: dict[str, int] = {}
        variants: list[dict[str, Any]] = []
        if self.settings.executor == "process":
            spec = dataclasses.replace(spec, slots=None)
            # Without a limit of its own a process that hangs is ended like a thread is left behind.
            limit = self.settings.time_limit_seconds or spec.plan.run.stall_seconds or None
            group = RemoteGroup(spec, limit, counts, variants, self._context.metering)
        else:
            opened = open_group(spec, self._clock, self._context.metering)
            group, counts, variants = opened.group, opened.counts, opened.variants
            if self._may_carry and opened.carried is not None:
                self._carrying = Carrying(self, self._passing, opened.carried, self._clock)
            self._may_carry = self._carrying is not None
        self.counts.append(counts)
        self.variants.append(variants)
        return self._add_worker(group, number)

    def _add_worker(self, group: RunsItems, number: int) -> Worker:
        claim = Claim(self._context.resources, self._spec.uses) if self._spec.uses else None
        has_own = self.has_queue or self.runs_in_place
        name = f"{self.name if has_own else RECEIVER}-{number}{self._device_of(number)}"
        worker = Worker(group, name, number, claim)
        self.workers.append(worker)
        return worker

    def _device_of(self, number: int) -> str:
        """Return what a worker's name says of the devices that its models are on; empty where there is one only."""
        models = [self._spec.plan.model_of(one.task, one.name) for one in self.stages if one.kind == "device"]
        devices = sorted({device for model in models if (device := model.device_of(number)) is not None})
        return f" device {','.join(map(str, devices))}" if devices else ""

    def work(self, worker: Worker) -> None:
        """Serve the queue until it is closed and empty."""
        worker.begin()
        hand_on = functools.partial(self._hand_on, worker)
        finisher = Finisher(hand_on, worker.name, self._links.broke) if self._takes_batches else None
        with finisher or contextlib.nullcontext():
            while not worker.is_left_behind and self.lever.wait_turn(worker.number):
                items, reason, waited_ns = self._taking.take(worker)
                if not items:
                    return
                if self.retries_in_place:
                    self.serve(worker, items, reason, waited_ns)
                elif finisher is None:
                    self._hand_on(worker, self._run(worker, items, reason, waited_ns))
                else:
                    served = self._run(worker, items, reason, waited_ns)
                    finisher(served, in_place=not self._taking.is_worth_a_thread(served.ran_ns))

    def run_in_place(self, items: list[Item]) -> list[int]:
        """Run items in the thread that brings them, and return when each came (ns)."""
        came = self._clock.now_ns()
        for item in items:
            item.arrived, item.queue_depth = came, 0
        worker: Worker | None = getattr(self._in_place, "worker", None)
        if worker is None:
            worker = self._in_place.worker = self.open_worker(len(self.workers))
            worker.begin()
        self.serve(worker, items)
        return [came] * len(items)

    def serve(self, worker: Worker, items: list[Item], reason: ReleaseReason | None = None, waited_ns: int = 0) -> int:
        """Run items through the group and hand them on, trying again in place what is to be tried again.

        Returns:
            Time in the stages, ns, with the pauses before other tries; the rest went by in handing on.
        """
        ran_ns = 0
        while items:
            served = self._run(worker, items, reason, waited_ns)
            # Looked up before: what moves on may already have failed elsewhere when we come back.
            failed = [item for item in served.items if item.error is not None]
            ran = self._clock.now_ns()
            self._hand_on(worker, served)
            ran_ns += served.ran_ns + (self._clock.now_ns() - ran if failed else 0)
            items = [item for item in failed if not item.root.settled]
        return ran_ns

    def _run(self, worker: Worker, items: list[Item], reason: ReleaseReason | None, waited_ns: int) -> Served:
        """Run what is still wanted, with the resources that it needs, and return what is to be handed on."""
        if worker.claim is None:
            return self._run_now(worker, items, reason, waited_ns)
        with worker.claim:
            return self._run_now(worker, items, reason, waited_ns)

    def _run_now(self, worker: Worker, items: list[Item], reason: ReleaseReason | None, waited_ns: int) -> Served:
        clock = self._clock
        dequeued = clock.now_ns()
        items = self._passing.keep_wanted(items, dequeued)
        if not items:
            return Served(items, [], dequeued, 0, None, reason, waited_ns)
        worker.busy_since = dequeued
        arrivals = self._passing.begin_tries(items, dequeued)
        began = dequeued
        worker.hand = None if self.settings.executor == "process" else (dequeued, items)
        if not self.warmth.is_there:
            self.warmth.bring(worker, items[0])
            began = clock.now_ns()
        unpack = worker.group.run(items, reason)
        worker.hand = None
        ran_ns = clock.now_ns() - began
        if worker.call is not None:
            worker.call.is_answered = items[0].error is None
            worker.call.ended = clock.now_ns() / 1e9
        self._taking.learn_pace(ran_ns / len(items))
        if self.lever.delay_seconds:
            self.lever.pause(len(items))
        worker.busy_since = 0
        # The process is read now: by the time this is handed on, the next batch may have had it replaced.
        return Served(items, arrivals, dequeued, worker.group.process_id, unpack, reason, waited_ns, ran_ns)

    def _hand_on(self, worker: Worker, served: Served) -> None:
        items = served.items
        if not items:
            return
        if served.unpack is not None:
            served.unpack()
        if self.device_name:
            self._passing.tell_batch(items, served.reason, served.waited_ns)
        timings, stamps = self._passing.hand_on(items)
        self._passing.note(worker.name, served.process_id, served.dequeued, served.arrivals, timings, stamps)

    # --- for `Carrying`

    def add_place(self) -> Worker:
        """Return a place for one more call that the one thread carries."""
        number = self._num_places
        self._num_places += 1
        return self._add_worker(self.workers[0].group, number) if number else self.workers[0]

    def take_now(self, limit: int, over: Sequence[Call], bell: Bell) -> Sequence[tuple[Item, Call | None]]:
        """Return at most so many items without waiting, each with what it asks of others; see `LanedQueue.take_calls`."""
        if self._bulkheads is not None:
            return self._bulkheads.take_calls(limit, over, bell)
        return [(item, None) for item in self.queue.take_now(limit, bell)]

    def statistics(self) -> StageStatistics:
        """Return queue and workers as they are now."""
        state = self.queue.state()
        return StageStatistics(
            self.name,
            self.num_workers,
            self.num_busy,
            state.depth,
            state.depth_bytes,
            state.capacity,
            state.waiting_producers,
            *self._bulkheads.slow_and_parked() if self._bulkheads is not None else (),
        )

    def retry_delay(self, item: Item) -> float | None:
        """Return seconds to wait before the item is tried here again, or None if it is not.

        Then its budget is used up, or no try here and now can help.
        """
        error = item.error
        if not isinstance(error, ItemFailed) or error.is_postponed:
            return None
        now = self._clock.now_ns()
        elapsed = (now - item.first_try_ns) / 1e9
        delay = self.retry.next_delay(item.tries, elapsed, self._context.random(), error.retry_after_seconds)
        deadline = item.job.deadline_ns
        return None if delay is None or (deadline is not None and now + delay * 1e9 > deadline) else delay

    @property
    def can_lose_a_thread(self) -> bool:
        """Whether a worker that hangs holds nothing that the others need."""
        return self.has_queue and self.device_name is None and self.last_role != "deliver"

    def replace(self, worker: Worker) -> None:
        """Put another worker in the place of one that hangs; that one leaves if it ever comes back."""
        worker.is_left_behind = True
        if self._bulkheads is not None and worker.call is not None:
            self._bulkheads.end(worker.call)
        self.workers.remove(worker)
        self._links.start_worker(worker.number)

    def run_alone(self, job_ids: Iterable[str]) -> None:
        """From now on run items of these jobs by themselves."""
        self._taking.run_alone(job_ids)

    def give_up(self) -> None:
        """End the processes and the carried calls of this station at once."""
        if self._carrying is not None:
            self._carrying.give_up()
        for worker in self.workers:
            if isinstance(worker.group, RemoteGroup):
                worker.group.kill()

    def hold_to(self, plan: Plan) -> None:
        """Make no larger batches, and let no more workers work, than a Plan says that asks for less than the run's own."""
        settings, own = plan.stages[self.name], self.settings
        batch = plan.stages[self.device_name].batch if self.device_name else None
        workers = settings.workers if settings.workers != own.workers else None
        self.lever.cap("budget", items=batch, workers=workers)


def pause(seconds: float) -> None:
    """Sleep; retries in place are the only sleeps of a worker."""
    time.sleep(seconds)
