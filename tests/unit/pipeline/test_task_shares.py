"""A run of several tasks of which one is slow."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import run as execute
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.testing import ListSource, MemoryQueue


class Echo(hr.Module):
    """Answers what it is given."""

    input = hr.BytesInput()

    def process(self, batch: Any) -> list[str]:
        """Return a text for each."""
        return [bytes(value).decode() for value in batch]


class Hanging(Echo):
    """Answers once it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()

    def process(self, batch: Any) -> list[str]:
        """Wait, and answer."""
        assert self.let.wait(120)
        return super().process(batch)


@pytest.mark.real_clock
@pytest.mark.parametrize("source", [{}, {"max_in_flight": 20}])
def test_a_task_that_hangs_holds_up_only_its_own(source: dict[str, Any]) -> None:
    """All jobs of the other task are delivered while one in ten waits for a model; then those are, too, and none is lost."""
    queue, slow, num_fast = MemoryQueue(), Hanging(), 540
    names = [f"{'slow' if number % 10 == 0 else 'fast'} {number}" for number in range(600)]
    queue.send([encode_job(name.encode(), id=name, task=name.split()[0]) for name in names])

    class Letting(Collect):
        def deliver(self, job: Job, result: Any) -> bool:
            done = super().deliver(job, result)
            if sum(job_id.startswith("fast") for job_id, _ in self.results) == num_fast:
                slow.let.set()
            return done

    delivery = Letting()
    pipeline = Pipeline(QueueSource(queue, drain=True), modules={"fast": Echo(), "slow": slow}, delivery=delivery)
    plan = Plan.from_table({"source": {"wait_seconds": 0.05, **source}, "run": {"warm_up": False}})
    result = execute(pipeline, plan)
    assert sorted(job_id for job_id, _ in delivery.results) == sorted(names)
    counters = result.counters
    assert counters.notes["route.turned_away"] > 0
    assert (counters.retried, counters.returned) == (0, counters.notes["route.turned_away"])  # none of them failed
    assert queue.statistics().dead == 0
    assert queue.statistics().dead == 0


@pytest.mark.parametrize("most", [1, 2, 4])
def test_tasks_that_are_both_busy_wait_for_each_other(most: int) -> None:
    """With little in flight and two that are alike all jobs are done."""
    queue = MemoryQueue()
    queue.send([encode_job(b"x", id=f"{number}", task=("a", "b")[number % 2]) for number in range(200)])
    delivery = Collect()
    pipeline = Pipeline(QueueSource(queue, drain=True), modules={"a": Echo(), "b": Echo()}, delivery=delivery)
    execute(pipeline, Plan.from_table({"source": {"wait_seconds": 0.05, "max_in_flight": most}}))
    assert len(delivery.results) == 200


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("receivers", "most"), [(2, 2), (3, 2), (4, 6)])
def test_receivers_do_not_wait_for_one_another(receivers: int, most: int) -> None:
    """What they hold and have not let in takes no share: else each of two that hold jobs of one task waits for the other."""
    tasks = ["ab"[number // 7 % 2] for number in range(40)]
    source = ListSource([b"x"] * len(tasks), tasks=tasks)
    delivery = Collect()
    pipeline = Pipeline(source, modules={"a": Echo(), "b": Echo()}, delivery=delivery)
    limits = {"receivers": receivers, "max_in_flight": most, "receive_batch": 1, "wait_seconds": 0.05}
    execute(pipeline, Plan.from_table({"source": limits}))
    assert len(delivery.results) == 40
