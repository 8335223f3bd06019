"""A queue calls as many of those that wait as its items are worth, and nothing is lost or left lying."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.clock import SystemClock
from headrace.base.policies.batching import BatchingPolicy
from headrace.base.records import Job
from headrace.pipeline.arms import Arm
from headrace.pipeline.bounded_queue import BoundedQueue
from headrace.pipeline.item import Item


def item_of(value: Any) -> Item:
    """Return an item that carries a value."""
    return Item(Job("x", value), value, ())


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.001)


def start(target: Callable[[], object], count: int) -> list[threading.Thread]:
    """Start this many threads."""
    threads = [threading.Thread(target=target, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    """Wait until all have left."""
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Workers:
    """Workers that wait on a queue, take once, and then wait until they may go."""

    def __init__(self, queue: BoundedQueue, count: int, limit: int = 64) -> None:
        self.taken: list[int] = []
        self._may_go = threading.Event()
        self._queue, self._count, self._limit = queue, count, limit
        self._threads = start(self._take, count)
        wait_until(lambda: queue.state().waiting_consumers == count)

    def leave(self) -> None:
        """Let them go."""
        self._may_go.set()
        self._queue.close()
        join(self._threads)

    def _take(self) -> None:
        items = self._queue.take(self._limit, self._count)
        if items:
            self.taken.append(len(items))
            self._may_go.wait()


@pytest.mark.parametrize(
    ("items_per_call", "taken"),
    [(1, [2, 2, 1, 1, 1]), (8, [8]), (3, [3, 3, 2])],
    ids=["long items", "all of them cheap", "cheap"],
)
def test_as_many_workers_come_as_the_items_are_worth(items_per_call: int, taken: list[int]) -> None:
    """Long items wake a worker each; of cheap ones a worker takes as many as pay for its waking."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    queue.items_per_call = items_per_call
    workers = Workers(queue, 5)
    queue.put([item_of(n) for n in range(8)])
    wait_until(lambda: sorted(workers.taken, reverse=True) == taken)
    assert queue.state().waiting_consumers == 5 - len(taken)
    workers.leave()


def test_who_takes_less_than_there_is_wakes_another() -> None:
    """Nothing is left lying where workers wait, though one was thought to be enough."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    queue.items_per_call = 8
    workers = Workers(queue, 5, limit=2)
    queue.put([item_of(n) for n in range(8)])
    wait_until(lambda: sum(workers.taken) == 8)
    assert workers.taken == [2, 2, 2, 2]
    assert queue.state().waiting_consumers == 1
    workers.leave()


def test_items_that_come_one_by_one_wake_one_worker_each() -> None:
    """Workers that are busy do not count: an item that comes alone is taken by one that waits."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    queue.items_per_call = 8
    workers = Workers(queue, 3)
    for number in range(3):
        queue.put([item_of(number)])
        wait_until(lambda expected=number + 1: len(workers.taken) == expected)
    assert workers.taken == [1, 1, 1]
    workers.leave()


@pytest.mark.parametrize("capacity", [3, 1000], ids=["tight", "wide"])
@pytest.mark.parametrize("batched", [False, True], ids=["items", "batches"])
def test_every_item_arrives_once(capacity: int, batched: bool) -> None:
    """Many producers, workers and batches, random pauses and paces: nothing is lost, and nothing comes twice."""
    queue = BoundedQueue(capacity, 40, SystemClock())
    policy = BatchingPolicy(max_size=4, max_wait_ns=100_000)
    num_each, num_producers = 300, 4
    got: list[int] = []
    numbers = iter(range(num_producers))

    def produce() -> None:
        first = next(numbers) * num_each
        rest = [item_of(number) for number in range(first, first + num_each)]
        while rest:
            count = random.randint(1, 7)
            some, rest = rest[:count], rest[count:]
            stamps = queue.put(some)
            assert len(stamps) == len(some)
            if random.random() < 0.2:
                queue.items_per_call = random.choice([1, 2, 10])
                time.sleep(random.random() * 0.001)

    def consume() -> None:
        while items := queue.take_batch(policy, lambda: False)[0] if batched else queue.take(random.randint(1, 5), 5):
            got.extend(item.value for item in items)
            if random.random() < 0.2:
                time.sleep(random.random() * 0.001)

    consumers = start(consume, 5)
    join(start(produce, num_producers))
    wait_until(lambda: queue.state().depth == 0)  # without the help of `close`
    queue.close()
    join(consumers)
    assert sorted(got) == list(range(num_each * num_producers))
    assert queue.state().peak <= capacity
    assert queue.state().depth_bytes == 0


def test_a_batch_holds_one_arm_and_no_canary_cuts_it_short() -> None:
    """Every third item is the canary's: both arms get full batches, in their order, and nothing is left over."""
    queue = BoundedQueue(100, 10**9, SystemClock())
    stable, canary = Arm("a", 0.3, is_canary=False, counts=True), Arm("b", 0.3, is_canary=True, counts=True)
    items = [Item(Job(str(number), b""), b"", ()) for number in range(12)]
    for number, item in enumerate(items):
        item.arm = stable if number % 3 else canary
    queue.put(items)
    policy = BatchingPolicy(max_size=4)
    taken = [[item.id for item in queue.take_batch(policy, lambda: False)[0]] for _ in range(3)]
    assert taken == [["0", "3", "6", "9"], ["1", "2", "4", "5"], ["7", "8", "10", "11"]]
    assert queue.state().depth == 0
    assert queue.num_bytes == 0


def test_an_arm_has_batches_of_its_own_size() -> None:
    """Those of a canary hold two in this stage, as its Plan says; the others four, and so they do in other stages."""
    stable = Arm("a", 0.5, is_canary=False, counts=True)
    canary = Arm("b", 0.5, is_canary=True, counts=True, batches={"process": 2})
    for stage, sizes in (("process", [2, 4, 2]), ("faces", [4, 4])):
        queue = BoundedQueue(100, 10**9, SystemClock())
        items = [Item(Job(str(number), b""), b"", ()) for number in range(8)]
        for number, item in enumerate(items):
            item.arm = stable if number % 2 else canary
        queue.put(items)
        policy = BatchingPolicy(max_size=4)
        taken = [queue.take_batch(policy, lambda: False, None, stage)[0] for _ in sizes]
        assert [len(batch) for batch in taken] == sizes
        assert all(item.arm is batch[0].arm for batch in taken for item in batch)
