"""Runs in which nothing succeeds: they stop receiving within a handful of jobs, and lose none."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.base.errors import ResultsRefused
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.delivery.jsonl import JsonLines
from headrace.pipeline.shared_values import _too_large
from headrace.sources.jobs import encode_job
from headrace.testing import ListSource, MemoryQueue


def typo(value: bytes) -> Any:
    """Fail as a slip of the hand does."""
    return value.men()  # type: ignore[attr-defined]


def refuse_bad(value: bytes) -> int:
    """Fail with what begins with `bad`."""
    if value.startswith(b"bad"):
        raise ValueError("bad")
    return len(value)


def queue_of(bodies: list[bytes], **settings: Any) -> MemoryQueue:
    """Return a queue with messages."""
    queue = MemoryQueue(visibility_seconds=30, **settings)
    queue.send(bodies)
    return queue


def jobs(*payloads: bytes) -> list[bytes]:
    """Return the messages of jobs."""
    return [encode_job(payload, id=f"job-{number}") for number, payload in enumerate(payloads)]


def run_to_the_end(queue: MemoryQueue, stage: Any, delivery: Any = None, **plan: Any) -> hr.Result:
    """Run until the queue is empty or the run gives up."""
    pipeline = hr.Pipeline(
        hr.queue(queue, drain=True), stages=[hr.stage("work", stage)], delivery=delivery or Collect()
    )
    table = {"source": {"wait_seconds": 0.1}, "stages": {"work": {"attempts": 1}}, **plan}
    return hr.run(pipeline, hr.Plan.from_table(table))


@pytest.mark.full
def test_a_typo_costs_no_job() -> None:
    """All of 40 jobs are still in the queue, none in the dead letters, and the run ends with the reason."""
    queue = queue_of(jobs(*[b"x"] * 40))
    result = run_to_the_end(queue, typo)
    state = queue.statistics()
    assert (state.dead, state.visible + state.delayed + state.in_flight) == (0, 40)
    assert "none of the last" in result.ended_early
    assert "AttributeError" in result.ended_early
    assert result.counters.notes["run.nothing_succeeded"] == 1


@pytest.mark.full
def test_messages_of_another_system_stay_where_they_are() -> None:
    """Of 60 messages in a foreign form four are moved to the dead letters, and the others can be received by their owner."""
    queue = queue_of([msgspec.json.encode({"asset_id": number}) for number in range(60)])
    result = run_to_the_end(queue, refuse_bad)
    state = queue.statistics()
    assert (state.dead, state.visible + state.delayed + state.in_flight) == (4, 56)
    assert "message." in result.ended_early


@pytest.mark.full
@pytest.mark.parametrize("num_bad", [3, 12])
def test_bad_messages_at_the_head_of_a_queue_of_good_ones(num_bad: int) -> None:
    """A worker that begins with them finds a good one and goes on; the bad ones end as they would have among good ones."""
    queue = queue_of(jobs(*[b"bad"] * num_bad, *[b"good"] * 50))
    delivery = Collect()
    plan = {"source": {"wait_seconds": 0.1, "max_receives": 1, "max_in_flight": 8}}
    result = run_to_the_end(queue, refuse_bad, delivery, **plan)
    assert len(delivery.results) == 50
    assert queue.statistics().dead == num_bad
    assert not result.ended_early


def test_one_bad_job_is_dead_lettered_as_ever() -> None:
    """Among good ones it uses up its deliveries, and nothing waits for it."""
    queue = queue_of(jobs(b"bad", *[b"good"] * 10))
    result = run_to_the_end(queue, refuse_bad, source={"wait_seconds": 0.1, "max_receives": 2})
    assert (queue.statistics().dead, result.counters.delivered) == (1, 10)
    assert "run.nothing_succeeded" not in result.counters.notes


class FullDisk(JsonLines):
    """Lines on a disk that is full for a while."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path)
        self.seconds = seconds
        self.full_since = 0.0
        self.num_tried = 0

    def deliver(self, job: Job, result: Any) -> bool:
        """Write it, after the first ten not before there is room."""
        self.num_tried += 1
        if self.num_tried > 10 and not self.full_since:
            self.full_since = time.monotonic()
        if self.full_since and time.monotonic() - self.full_since < self.seconds:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().deliver(job, result)


@pytest.mark.full
def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    """While it is full next to nothing is worked on, no job pays for it, and when it is not the run goes on to its end."""
    worked: list[int] = []

    def work(value: int) -> int:
        worked.append(value)
        return value

    delivery = FullDisk(tmp_path / "results.jsonl", 2.0)
    source = ListSource(list(range(300)), max_receives=1)
    pipeline = hr.Pipeline(source, stages=[hr.stage("work", work)], delivery=delivery)
    table = {"source": {"wait_seconds": 0.05, "max_in_flight": 8}, "stages": {"deliver": {"attempts": 1}}}
    result = hr.run(pipeline, hr.Plan.from_table(table))
    assert (result.counters.delivered, result.counters.dead_lettered) == (300, 0)
    assert 0 < result.counters.returned < 30
    assert len(worked) < 330


def test_shared_memory_is_short_unless_the_value_fits_nowhere() -> None:
    """A value that would fit if others were not there is no job's fault; one larger than all there is, is."""
    error = OSError(errno.ENOSPC, "No space left on device")
    assert _too_large(1000, error).reason.startswith("shortage.shared_memory: a value of 1000 bytes")
    assert _too_large(2**60, error).reason.startswith("a value of ")


class RefusingTable(Collect):
    """A table that a column was taken from: each flush refuses all of its rows, until somebody mends it."""

    flush_items = 1

    def __init__(self, num_refused: int) -> None:
        super().__init__()
        self.num_left = num_refused
        self.waiting: list[str] = []

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep it until the flush."""
        self.waiting.append(job.id)
        super().deliver(job, result)
        return False

    def flush(self) -> None:
        """Refuse all, or nothing once it is mended."""
        waiting, self.waiting = self.waiting, []
        if self.num_left > 0:
            self.num_left -= len(waiting)
            raise ResultsRefused(dict.fromkeys(waiting, "sql.refused: there is no such column"))


def test_a_table_that_refuses_every_row_costs_few_jobs() -> None:
    """After a handful the others are given back, and are delivered once the table is mended."""
    queue = queue_of(jobs(*[b"x"] * 80))
    result = run_to_the_end(queue, refuse_bad, RefusingTable(26), source={"wait_seconds": 0.1, "max_in_flight": 8})
    assert queue.statistics().dead <= 20
    assert result.counters.delivered >= 60
    assert result.counters.notes["run.nothing_succeeded"] == 1


def test_a_row_that_is_refused_among_good_ones_is_its_own_fault() -> None:
    """However few rows a flush has."""
    queue = queue_of(jobs(*[b"x"] * 40))
    result = run_to_the_end(queue, refuse_bad, RefusingTable(3))
    assert (queue.statistics().dead, result.counters.delivered) == (3, 37)
    assert "run.nothing_succeeded" not in result.counters.notes
