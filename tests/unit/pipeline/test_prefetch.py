"""How many jobs a run takes away from others that read the same queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.sources.jobs import encode_job
from headrace.testing.memory_queue import MemoryQueue

pytestmark = pytest.mark.real_clock


@contextmanager
def running(work: Callable[[bytes], Any], num_jobs: int, visibility: float, *settings: str) -> Iterator[Any]:
    """Run a stage over a queue that is drained; gives the source, and waits for the end."""
    queue = MemoryQueue(visibility_seconds=visibility)
    queue.send([encode_job(b"x", id=str(number)) for number in range(num_jobs)])
    source = hr.queue(queue, drain=True)
    pipeline = hr.Pipeline(source, stages=[hr.stage("work", work, kind="io")], delivery=hr.collect())
    plan = Plan().with_settings(["source.wait_seconds=0.05", *settings])
    failures: list[BaseException] = []

    def run() -> None:
        try:
            hr.run(pipeline, plan)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield source, queue
    finally:
        thread.join(60)
    assert not failures
    assert not thread.is_alive()
    assert queue.statistics().visible == queue.statistics().in_flight == queue.statistics().dead == 0


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for it, at most a minute."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_until_something_is_done_only_the_hands_are_filled() -> None:
    """While the first jobs take long, a run holds what its workers have in hand at once, not what its queues hold."""
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def work(_: bytes) -> int:
        begun.release()
        go_on.wait(60)
        return 1

    with running(work, 500, 30.0, "work.workers=4", "deliver.workers=2") as (_, queue):
        for _ in range(4):
            assert begun.acquire(timeout=60)
        time.sleep(0.3)  # for whatever more would be received
        most = queue.statistics().in_flight
        go_on.set()
    assert most == 6


def test_what_is_much_faster_than_its_loans_is_not_held_back() -> None:
    """A fast pipeline soon has as much in flight as its queues hold."""
    most, count = 0, 0

    def work(_: bytes) -> int:
        nonlocal count, most
        count += 1
        if count % 100 == 0:
            most = max(most, queue.statistics().in_flight)
        return 1

    with running(work, 3000, 30.0, "work.workers=1") as (_, queue):
        pass
    assert most > 20


def test_workers_whose_jobs_outlast_their_loans_all_work() -> None:
    """Where a job takes longer than it is lent, as many are in flight as there are workers, so that none is idle."""
    meeting = threading.Barrier(8, timeout=60)

    def work(_: bytes) -> int:
        time.sleep(0.4)
        meeting.wait()  # all eight at the same time, or nobody goes on
        return 1

    with running(work, 32, 0.3, "work.workers=8", "source.max_receives=1000") as (source, _):
        pass
    assert source.statistics().delivered == 32


def test_what_cannot_be_done_in_time_is_given_back() -> None:
    """A pipeline that becomes slow gives back what waits, so that other workers can have it, and is not blamed for it."""
    slow = threading.Event()

    def work(_: bytes) -> int:
        time.sleep(0.3 if slow.is_set() else 0.0005)
        return 1

    with running(work, 1500, 2.0, "work.workers=1") as (source, queue):
        wait_until(lambda: queue.statistics().in_flight > 40)
        slow.set()
        wait_until(lambda: source.statistics().returned > 0 and queue.statistics().in_flight < 15)
        slow.clear()
    counts = source.statistics()
    assert counts.delivered == 1500
    assert counts.dead_lettered == 0
