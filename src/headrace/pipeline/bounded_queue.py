"""The queue before a station: bounded in items and bytes, so that a slow stage holds back those before it.

How this works: one lock and two places to wait. A wake-up per item would cost two context switches per item, which at
thousands of items per second is the larger part of a runtime's cost. So as many consumers are called as the items are worth,
one at least, and those that were called and have not come yet count as well. Who takes items looks whether what it leaves
is worth another consumer: no item waits while nobody is called for it. Nobody looks again and again before it waits: on two
cores, twenty looks with `sleep(0)` doubled the switches and cost CPU, since all threads share the GIL.

Producers that found the queue full are called together once it has fallen to half of its bound. `close` calls everybody; what
is in the queue then is still handed out.

Items of priority 0 go first, before those of 1; see `two_lines`. While there are none a plain deque holds what waits.

A thread that carries calls never waits here: it takes what there is and puts what fits, and leaves a bell (`base.parking`).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.base.parking import Bell, Parking
from headrace.base.policies.batching import BatchingPolicy, Release, ReleaseReason, Waiting
from headrace.pipeline.item import Item
from headrace.pipeline.resources import Claim
from headrace.pipeline.two_lines import TwoLines


@dataclass(frozen=True, slots=True)
class QueueState:
    """State of one queue at one moment."""

    depth: int
    depth_bytes: int
    capacity: int
    waiting_producers: int
    waiting_consumers: int
    peak: int


class BoundedQueue:
    """First in, first out, by priority; thread-safe.

    Args:
        capacity: Bound in items, >= 1.
        capacity_bytes: Bound in bytes; one larger item passes alone.
        clock: Stamps arrivals.
        is_in_order: Whether what came first goes first, whatever its priority.

    Attributes:
        items_per_call: Items whose work is worth waking one more consumer, >= 1; set by who knows how long they take.
    """

    def __init__(self, capacity: int, capacity_bytes: int, clock: Clock, *, is_in_order: bool = False) -> None:
        self.items_per_call = 1
        self._is_in_order = is_in_order
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._now_ns = clock.now_ns
        self._items: deque[Item] | TwoLines[Item] = deque()
        self._bytes = 0
        self._peak = 0
        self._closed = False
        lock = threading.Lock()
        self._consumers = Parking(lock)
        self._producers = Parking(lock)
        self._lock = lock

    def put(self, items: Sequence[Item], *, force: bool = False, has_room: bool = False) -> list[int]:
        """Add items in order, waiting while the queue is full, and return when each was taken in (ns).

        Args:
            items: What to add.
            force: Do not wait: for items that were in this queue before (retries) and must not wait on themselves.
            has_room: Do not wait either: `find_room` found room for them, which others may have taken since.
        """
        with self._lock:
            num = len(items)
            if force or has_room or self._closed or self._count_fitting(items) == num:  # nearly always
                stamp = self._add(items)
                self._call_consumers(num)
                return [stamp] * num
            stamps: list[int] = []
            while True:
                num = len(items) if self._closed else self._count_fitting(items)
                stamps += [self._add(items[:num])] * num
                items = items[num:]
                if not items:
                    break
                self._wait_for_room(len(stamps))
            self._call_consumers(len(stamps))
        return stamps

    def wait_for_room(self) -> None:
        """Wait while the queue is full; whoever then adds without waiting keeps it about as full as its bounds say."""
        with self._lock:
            while not self._closed and self._items and self._is_full(self._items[-1]):
                self._producers.wait()

    def take(self, limit: int, share: int = 1) -> list[Item]:
        """Return 1 to limit items, waiting for the first; [] once the queue is closed and empty.

        Args:
            limit: At most so many.
            share: Number of workers that live on this queue: nobody takes more than its fair part of what is there.
        """
        with self._lock:
            while not self._items:
                if self._closed:
                    return []
                self._consumers.wait()
            # A part that is not worth waking another for is no use to the others.
            num = len(self._items)
            fair = max(-(-num // share), self.items_per_call)
            items = self._pop(min(num, limit, fair))
            self._call_consumers(num - len(items))
            return items

    def take_now(self, limit: int, bell: Bell) -> list[Item]:
        """Return up to limit items without waiting for any.

        Args:
            limit: At most so many.
            bell: Rung once something comes, or the queue is closed, unless as many were there as were asked for.
        """
        with self._lock:
            self._consumers.come(bell)
            items = self._pop(min(limit, len(self._items)))
            if len(items) < limit:
                self._consumers.leave(bell)
            return items

    def find_room(self, items: Sequence[Item], bell: Bell) -> int:
        """Return how many of the items, from the first, can be put without waiting; the bell is rung when more can be."""
        with self._lock:
            self._producers.come(bell)
            num = len(items) if self._closed else self._count_fitting(items)
            if num < len(items):
                self._producers.leave(bell)
            return num

    def take_batch(
        self, policy: BatchingPolicy, is_draining: Callable[[], bool], claim: Claim | None = None, stage: str = ""
    ) -> tuple[list[Item], ReleaseReason, int]:
        """Return the batch that the policy releases, why, and the age of its oldest item in ns; [] once closed and empty.

        Args:
            policy: Decides.
            is_draining: Whether no more items can come.
            claim: Held when a batch is returned, and not while there is none: what comes while it is waited for joins.
            stage: Whose batches these are: a canary may have its own policy for it.
        """
        with self._lock:
            while True:
                seconds = None
                if self._items:
                    arm = self._items[0].arm
                    asked = policy if arm is None else arm.adapt(policy, stage)
                    waiting = self._look(asked.max_size, is_draining)
                    decision = asked.decide(self._now_ns(), waiting)
                    if isinstance(decision, Release):
                        if claim is not None and not claim.is_held:
                            self._wait_for(claim)
                            continue
                        items = self._pop_arm(decision.size)
                        self._call_consumers(len(self._items))
                        return items, decision.reason, self._now_ns() - waiting.oldest_arrived_ns
                    seconds = max(0, decision.until_ns - self._now_ns()) / 1e9
                if claim is not None:
                    claim.give()
                if self._closed and not self._items:
                    return [], ReleaseReason.DRAIN, 0
                self._consumers.wait(seconds)

    def take_alike(self, first: Item, limit: int) -> list[Item]:
        """Return up to limit items that may be in one batch with another one, without waiting for any."""
        with self._lock:
            arm, shape_key = first.arm, first.shape_key
            alike = itertools.takewhile(lambda item: item.arm is arm and item.shape_key == shape_key, self._items)
            return self._pop(sum(1 for _ in itertools.islice(alike, limit)))

    def _wait_for(self, claim: Claim) -> None:
        """Wait for a claim without keeping others from the queue."""
        self._lock.release()
        try:
            claim.take()
        finally:
            self._lock.acquire()

    def remove_newest(self, count: int, may_go: Callable[[Item], bool]) -> list[Item]:
        """Take out at most so many of those that may go, the newest first, and return them."""
        with self._lock:
            kept: list[Item] = []
            gone: list[Item] = []
            while self._items and len(gone) < count:
                item = self._items.pop()
                (gone if may_go(item) else kept).append(item)
            self._items.extend(reversed(kept))
            self._note_taken(gone)
        return gone

    def remove_all(self) -> list[Item]:
        """Return everything in the queue and leave it empty."""
        with self._lock:
            return self._pop(len(self._items))

    def close(self) -> None:
        """Let consumers finish what is in the queue and then stop."""
        with self._lock:
            self._closed = True
            self._consumers.call_all()
            self._producers.call_all()

    def wake(self) -> None:
        """Make waiting consumers look again: no more items will come, so a batch need not wait for company."""
        with self._lock:
            self._consumers.call_all()

    @property
    def is_over(self) -> bool:
        """Whether it is closed and empty; without the lock: once it is over it stays so."""
        return self._closed and not len(self._items)

    @property
    def depth(self) -> int:
        """Items that wait now; without the lock."""
        return len(self._items)

    @property
    def num_bytes(self) -> int:
        """Bytes that wait now; without the lock, for those who only want to know how much there is."""
        return self._bytes

    @property
    def fill_ratio(self) -> float:
        """How full it is, of items or of bytes; above 1 where more was forced in; without the lock, too."""
        return max(len(self._items) / self._capacity, self._bytes / self._capacity_bytes)

    def state(self) -> QueueState:
        """Return depth, bounds and who waits."""
        with self._lock:
            return QueueState(
                len(self._items),
                self._bytes,
                self._capacity,
                len(self._producers),
                len(self._consumers),
                self._peak,
            )

    def _is_full(self, item: Item) -> bool:
        return not self._count_fitting([item])

    def _count_fitting(self, items: Sequence[Item]) -> int:
        """Return how many of the first items there is room for."""
        depth, num_bytes, count = len(self._items), self._bytes, 0
        capacity, capacity_bytes = self._capacity, self._capacity_bytes
        for item in items:
            num_bytes += item.num_bytes
            if depth >= capacity or (depth and num_bytes > capacity_bytes):
                break
            depth += 1
            count += 1
        return count

    def _add(self, items: Sequence[Item]) -> int:
        """Add items without a look at the bounds, and return when (ns)."""
        stamp, depth, num_bytes = self._now_ns(), len(self._items), self._bytes
        for item in items:
            item.arrived = stamp
            item.queue_depth = depth
            depth += 1
            num_bytes += item.num_bytes
            if not item.job.priority and not self._is_in_order and isinstance(self._items, deque):
                self._items = TwoLines(self._items, _is_urgent)
        self._bytes = num_bytes
        self._items.extend(items)
        if depth > self._peak:
            self._peak = depth
        return stamp

    def _look(self, max_size: int, is_draining: Callable[[], bool]) -> Waiting:
        # A batch is a run of items of one shape from the head: order is kept, and the first never starves. Of two arms each
        # has its own run, or a canary would cut all batches short.
        first, count = self._items[0], 1
        arm, shape_key, closed_by_shape = first.arm, first.shape_key, False
        for item in itertools.islice(self._items, 1, None):
            if count >= max_size:
                break
            if item.arm is not arm:
                continue
            if item.shape_key != shape_key:
                closed_by_shape = True
                break
            count += 1
        return Waiting(count, first.arrived, closed_by_shape, self._closed or is_draining())

    def _pop(self, count: int) -> list[Item]:
        take = self._items.popleft
        items = [take()] if count == 1 else [take() for _ in range(count)]
        self._note_taken(items)
        return items

    def _pop_arm(self, count: int) -> list[Item]:
        """Take the first items of the first one's arm."""
        arm = self._items[0].arm
        for item in itertools.islice(self._items, count):  # all() would cost a call for each
            if item.arm is not arm:
                break
        else:
            return self._pop(count)
        items: list[Item] = []
        passed: list[Item] = []
        while len(items) < count:
            item = self._items.popleft()
            (items if item.arm is arm else passed).append(item)
        self._items.extendleft(reversed(passed))
        self._note_taken(items)
        return items

    def _note_taken(self, items: Sequence[Item]) -> None:
        for item in items:
            self._bytes -= item.num_bytes
        if self._producers.parked:
            self._make_room()

    def _make_room(self) -> None:
        """Call the producers, of whom there are some, once there is room enough."""
        if len(self._items) <= self._capacity // 2 and self._bytes <= self._capacity_bytes // 2:
            self._producers.call_all()

    def _wait_for_room(self, num_new: int) -> None:
        self._call_consumers(num_new)
        self._producers.wait()

    def _call_consumers(self, num_new: int) -> None:
        """Call as many consumers as the items are worth that wait, but not more than there are new ones."""
        if num_new and self._consumers.parked:
            wanted = -(-len(self._items) // self.items_per_call)
            self._consumers.call(min(num_new, wanted - self._consumers.num_called))


def _is_urgent(item: Item) -> bool:
    return not item.job.priority
