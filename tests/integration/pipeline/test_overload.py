"""More work than can be delivered, a full disk, a worker that stands still for a while: nothing is lost, nothing grows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.records import Job, Message
from headrace.delivery.collect import Collect
from headrace.pipeline.execute import run as execute
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = pytest.mark.measures

VISIBILITY_SECONDS = 1.0


class SlowReceiver(Collect):
    """Takes its time for each result, and notes how many are in somebody's hands meanwhile."""

    default_workers = 4

    def __init__(self, queue: SqliteQueue) -> None:
        super().__init__()
        self.in_flight: list[int] = []
        self._queue = queue

    def deliver(self, job: Job, result: Any) -> bool:
        """Deliver slowly."""
        self.in_flight.append(self._queue.statistics().in_flight)
        time.sleep(0.05)
        return super().deliver(job, result)


def wait_until(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.01)


def test_a_slow_receiver_slows_receiving(tmp_path: Path) -> None:
    """Where delivering takes several visibility timeouts, receiving waits, loans are extended, and nothing comes twice."""
    with contextlib.closing(SqliteQueue(tmp_path / "jobs.db", visibility_seconds=VISIBILITY_SECONDS)) as queue:
        queue.send([encode_job(b"x", id=f"job-{number}") for number in range(300)])
        delivery = SlowReceiver(queue)
        pipeline = hr.Pipeline(hr.queue(queue, drain=True), stages=[hr.stage("work", len)], delivery=delivery)
        plan = {"stages": {"work": {"queue_items": 40}, "deliver": {"queue_items": 40, "workers": 4}}}
        result = execute(pipeline, Plan.from_table(plan))
    notes = result.counters.notes
    assert sorted(name for name, _ in delivery.results) == sorted(f"job-{number}" for number in range(300))
    assert max(delivery.in_flight) < 120
    assert notes["source.extended"] > 0
    assert not {"source.redelivered", "source.adopted", "source.stale"} & set(notes)
    assert (result.counters.received, result.counters.lost) == (300, 0)


FULL_DISK = """
import resource, sys
import headrace as hr
from headrace.base.errors import ItemRejected
from headrace.testing import ListSource
from headrace.pipeline.execute import run

def work(number):
    if number % 2:
        raise ItemRejected("x" * 200)
    return number

pipeline = hr.Pipeline(ListSource(range(2000)), stages=[hr.stage("work", work)], delivery=hr.collect())
resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))
result = run(pipeline, output=sys.argv[1])
print(result.counters.delivered, result.counters.rejected)
"""


def test_a_full_disk_costs_records_and_not_the_run(tmp_path: Path) -> None:
    """A run whose folder cannot be written any more goes on, delivers everything, and says what is missing."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "RUN")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "1000 1000\n", done.stderr
    assert "errors.jsonl cannot be written" in done.stderr
    assert "The run goes on; spans that are lost are counted" in done.stderr


PAUSED = """
import sys, time
import headrace as hr

def work(value):
    time.sleep(0.05)
    return len(value)

source = hr.queue(f"sqlite:///{sys.argv[1]}", visibility=1.0, drain=True)
plan = hr.Plan.from_table({"source": {"wait_seconds": 0.1}})
hr.run(hr.Pipeline(source, stages=[hr.stage("work", work)], delivery=hr.jsonl(sys.argv[2])), plan)
"""


def test_a_worker_that_was_stopped_for_a_while_lets_go(tmp_path: Path) -> None:
    """After a pause longer than the loans, what somebody else took meanwhile is left to them, and nothing is lost."""
    database, results = tmp_path / "jobs.db", tmp_path / "results.jsonl"
    with contextlib.closing(SqliteQueue(database, visibility_seconds=1.0)) as queue:
        queue.send([encode_job(b"x", id=f"job-{number}") for number in range(60)])
        with subprocess.Popen([sys.executable, "-c", PAUSED, str(database), str(results)]) as worker:
            wait_until(lambda: results.exists() and results.stat().st_size)
            os.kill(worker.pid, signal.SIGSTOP)
            taken: list[Message] = []
            wait_until(lambda: taken.extend(m for m in queue.receive(60) if m.receive_count > 1) or taken)
            ours = {json.loads(message.body)["id"] for message in taken}
            queue.ack([message.receipt for message in taken])
            # What was received here for the first time is not the worker's: back with it.
            wait_until(lambda: queue.statistics().in_flight == 0)
            os.kill(worker.pid, signal.SIGCONT)
            assert worker.wait(60) == 0
        state = queue.statistics()
    delivered = {json.loads(line)["id"] for line in results.read_text().splitlines()}
    assert delivered | ours == {f"job-{number}" for number in range(60)}
    assert (state.visible, state.in_flight, state.dead) == (0, 0, 0)
