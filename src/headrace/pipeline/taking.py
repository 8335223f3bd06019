"""What a worker takes from its queue at a time: a batch, or so many cheap items that handing over costs less than the work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol

from headrace.base.handoff import handoff_cost
from headrace.base.plan import StagePlan
from headrace.base.policies.batching import BatchingPolicy, ReleaseReason
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.bulkheads import Bulkheads
from headrace.pipeline.connections import Connections
from headrace.pipeline.item import Item
from headrace.pipeline.levers import Lever
from headrace.pipeline.passing import Passing
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.warmth import Warmth
from headrace.pipeline.worker import Worker

#: Work handed to a worker at once is to take at most about this long, so that chunks cost no visible latency.
_CHUNK_SECONDS = 0.001
_MAX_CHUNK = 64

#: Work is worth a thread of its own if it takes this many times as long as waking one: most of it holds the GIL, so that a
#: second thread makes little of it faster.
_CALLS_WORTH = 8

#: Items, why their batch was closed (None: they are none), and the age of the oldest in the queue, ns.
Taken = tuple[list[Item], ReleaseReason | None, int]


class HasQueue(Protocol):
    """A station, as who takes from it sees it; see `station.Station`."""

    queue: BoundedQueue
    settings: StagePlan
    lever: Lever
    warmth: Warmth
    device_name: str | None
    retries_in_place: bool

    @property
    def bulkheads(self) -> Bulkheads | None:
        """What shares its workers out among those they wait on."""
        ...

    @property
    def num_workers(self) -> int:
        """Workers that the Plan asks for."""
        ...


class Taking:
    """How the workers of one station take items.

    Args:
        station: Whose workers.
        context: Of the run.
        links: To the run, which says whether more can come.
        passing: Knows what is still wanted.
        policy: How batches are formed; None: the station has no device.
    """

    def __init__(
        self,
        station: HasQueue,
        context: RunContext,
        links: Connections,
        passing: Passing,
        policy: BatchingPolicy | None,
    ) -> None:
        self._station = station
        self._context = context
        self._clock = context.clock
        self._is_draining = links.is_draining
        self._keep_wanted = passing.keep_wanted
        self._policy = policy
        self._seconds_per_item = _CHUNK_SECONDS
        self._least_seconds = _CALLS_WORTH * handoff_cost().cpu_seconds
        self._to_run_alone: set[str] = set()
        if policy is not None:
            station.queue.items_per_call = policy.max_size

    def take(self, worker: Worker) -> Taken:
        """Wait for items, and return what the worker is to run now; nothing once no more come."""
        items, reason, waited_ns = self._take_some(worker)
        return self._one_alone(items) if self._to_run_alone else items, reason, waited_ns

    def learn_pace(self, nanoseconds: float) -> None:
        """Note how long the stages took for an item."""
        # Racing writers lose an update of an estimate, which costs nothing; a lock per item would.
        seconds = nanoseconds / 1e9 + 1e-7
        self._seconds_per_item += 0.2 * (seconds - self._seconds_per_item)

    def is_worth_a_thread(self, nanoseconds: int) -> bool:
        """Return whether work that takes so long may go on while another thread hands on what is done."""
        return nanoseconds > self._least_seconds * 1e9 and self._station.queue.fill_ratio > 0

    def run_alone(self, job_ids: Iterable[str]) -> None:
        """From now on run items of these jobs by themselves."""
        self._to_run_alone = self._to_run_alone | set(job_ids)  # a new set: workers read it

    def _take_some(self, worker: Worker) -> Taken:
        station = self._station
        if self._policy is not None:
            return self._take_batch(self._policy_now(self._policy), worker)
        limit = 1
        # In order and in place, one that is tried again must not be overtaken by those taken with it.
        if station.settings.executor != "process" and not station.retries_in_place:
            limit = max(1, min(_MAX_CHUNK, int(_CHUNK_SECONDS / self._seconds_per_item)))
            station.queue.items_per_call = max(1, min(limit, int(self._least_seconds / self._seconds_per_item)))
        if station.bulkheads is not None:
            items, worker.call = station.bulkheads.take_for(limit, worker.call)
            return items, None, 0
        return station.queue.take(limit, station.num_workers), None, 0

    def _policy_now(self, policy: BatchingPolicy) -> BatchingPolicy:
        lever = self._station.lever
        most, cap = lever.most_items, lever.cap_items
        if self._context.forecast is not None and not self._station.warmth.is_there:
            cap = 1  # until it is known how many fit
        if most is None and cap is None:
            return policy
        return dataclasses.replace(
            policy, max_size=min(most or policy.max_size, cap or policy.max_size, policy.max_size)
        )

    def _take_batch(self, policy: BatchingPolicy, worker: Worker) -> Taken:
        """Return a batch of what is still wanted: it is as large as if the others had never come."""
        queue, stage = self._station.queue, self._station.device_name or ""
        while True:
            taken, reason, waited_ns = queue.take_batch(policy, self._is_draining, worker.claim, stage)
            items = self._keep_wanted(taken, self._clock.now_ns())
            while 0 < len(items) < len(taken):
                more = queue.take_alike(items[0], len(taken) - len(items))
                if not more:
                    break
                items += self._keep_wanted(more, self._clock.now_ns())
            if items or not taken:
                return items, reason, waited_ns

    def _one_alone(self, items: list[Item]) -> list[Item]:
        """Return the items without suspects, or one suspect; the others go back into the queue."""
        suspects = [item for item in items if item.root.job.id in self._to_run_alone]
        if not suspects or len(items) == 1:
            return items
        others = [item for item in items if item not in suspects]
        now, later = (others, suspects) if others else (suspects[:1], suspects[1:])
        self._station.queue.put(later, force=True)
        return now
