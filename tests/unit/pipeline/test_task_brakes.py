"""Runs of several tasks of which one has no success at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import headrace as hr
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.sources.jobs import encode_job
from headrace.testing import ListSource, MemoryQueue


class Good(hr.Module):
    """Answers what it is given."""

    input = hr.BytesInput()

    def process(self, batch: Any) -> list[str]:
        """Return a text for each."""
        return [bytes(value).decode() for value in batch]


class Bad(Good):
    """Fails as a slip of the hand does."""

    def process(self, batch: Any) -> list[str]:
        """Fail."""
        return batch.men()  # type: ignore[no-any-return]


PLAN = {"source": {"wait_seconds": 0.05, "max_receives": 2}, "run": {"warm_up": False}}
TASKS = ["bad" if number % 3 else "good" for number in range(150)]


def run(
    source: Any,
    delivery: Collect,
    bad: type[hr.Module] = Bad,
    stop: threading.Event | None = None,
    limit: int | None = None,
) -> hr.Result:
    """Run two tasks."""
    pipeline = hr.Pipeline(source, modules={"good": Good(), "bad": bad()}, delivery=delivery)
    return hr.run(pipeline, hr.Plan.from_table(PLAN), stop=stop, limit=limit)


def filled() -> MemoryQueue:
    """Return a queue with jobs of both tasks."""
    queue = MemoryQueue()
    queue.send([encode_job(b"x", id=str(number), task=task) for number, task in enumerate(TASKS)])
    return queue


class StopsAfter(Collect):
    """Sets an event once so many results are there."""

    def __init__(self, number: int, event: threading.Event) -> None:
        super().__init__()
        self._number, self._event = number, event

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep it."""
        done = super().deliver(job, result)
        if len(self.results) == self._number:
            self._event.set()
        return done


@pytest.mark.real_clock
def test_a_service_does_the_other_task_and_keeps_the_jobs_of_the_bad_one() -> None:
    """All of the good ones are delivered; of the others none is lost, and a few have been tried."""
    queue, stop = filled(), threading.Event()
    delivery = StopsAfter(50, stop)
    result = run(hr.queue(queue), delivery, stop=stop)
    state = queue.statistics()
    assert len(delivery.results) == 50
    assert (state.dead, state.visible + state.delayed + state.in_flight) == (0, 100)
    assert result.counters.notes["route.nothing_succeeded"] == 1
    assert "run.nothing_succeeded" not in result.counters.notes


@pytest.mark.full
@pytest.mark.real_clock
def test_draining_ends_with_the_task_that_is_given_up() -> None:
    """When nothing else is left the run ends early and says why; the bad task's jobs are still in the queue."""
    queue, delivery = filled(), Collect()
    result = run(hr.queue(queue, drain=True), delivery)
    state = queue.statistics()
    assert len(delivery.results) == 50
    assert (state.dead, state.visible + state.delayed + state.in_flight) == (0, 100)
    assert "of task 'bad' succeeded; the last: " in result.ended_early
    assert "AttributeError" in result.ended_early


@pytest.mark.full
@pytest.mark.real_clock
def test_a_source_that_ends_leaves_them_undone() -> None:
    """The same over a list: what was not tried, or failed while the brake was on, has no outcome of its own."""
    source, delivery = ListSource([b"x"] * 150, tasks=TASKS, max_receives=2), Collect()
    result = run(source, delivery)
    assert len(delivery.results) == 50
    assert result.counters.dead_lettered == 0
    assert "of task 'bad' succeeded" in result.ended_early


class BadAtFirst(Good):
    """Fails for its first batches."""

    num_calls = 0

    def process(self, batch: Any) -> list[str]:
        """Fail, or answer."""
        self.num_calls += 1
        if self.num_calls < 10:
            raise ValueError("not ready")
        return super().process(batch)


@pytest.mark.real_clock
def test_a_task_that_recovers_is_done_after_all() -> None:
    """Once a try succeeds its jobs are let in again, and every job of both tasks is delivered."""
    queue, delivery = filled(), Collect()
    result = run(hr.queue(queue, drain=True), delivery, BadAtFirst)
    assert len(delivery.results) == 150
    assert not result.ended_early


@pytest.mark.full
@pytest.mark.real_clock
def test_where_both_are_bad_the_run_stops() -> None:
    """Nothing is delivered, nothing lost, and the run says that none of the last jobs succeeded."""
    queue = filled()
    pipeline = hr.Pipeline(hr.queue(queue, drain=True), modules={"good": Bad(), "bad": Bad()}, delivery=Collect())
    result = hr.run(pipeline, hr.Plan.from_table(PLAN))
    state = queue.statistics()
    assert (state.dead, state.visible + state.delayed + state.in_flight) == (0, 150)
    assert "none of the last" in result.ended_early
    assert result.counters.notes["run.nothing_succeeded"] == 1


@pytest.mark.real_clock
def test_what_is_turned_away_uses_up_no_limit() -> None:
    """The good ones are done although the bad ones in between outnumber the limit; the summary says how many are left."""
    queue, delivery = MemoryQueue(), Collect()
    tasks = ["bad" if number % 2 else "good" for number in range(400)]
    queue.send([encode_job(b"x", id=str(number), task=task) for number, task in enumerate(tasks)])
    result = run(hr.queue(queue), delivery, limit=200)
    counters, state = result.counters, queue.statistics()
    tried = counters.delivered + counters.retried + counters.dead_lettered
    assert tried <= 200
    assert tried > 190 or result.ended_early
    assert len(delivery.results) > 150
    assert any("put aside and not done" in warning and "brake.task" in warning for warning in result.warnings)
    assert state.visible + state.delayed + state.in_flight + state.dead == 400 - len(delivery.results)


@pytest.mark.full
@pytest.mark.real_clock
def test_a_limit_ends_where_all_that_is_left_is_turned_away() -> None:
    """A limit that cannot be reached with the good ones alone ends with the task that is given up."""
    delivery = Collect()
    result = run(hr.queue(filled()), delivery, limit=140)
    assert len(delivery.results) == 50
    assert "of task 'bad' succeeded" in result.ended_early
