"""Results that are durable later: their jobs are settled then, and not before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import headrace as hr
from headrace.base.errors import DeliveryFailed
from headrace.base.plan import Plan, resolve
from headrace.base.records import Job, OutcomeKind
from headrace.delivery.parquet import Parquet
from headrace.pipeline.building import Equipment
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.item import Item
from headrace.pipeline.run_context import RunContext
from headrace.pipeline.runtime import Runtime
from headrace.pipeline.thread_budget import budget
from headrace.pipeline.unflushed import UnflushedResults
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.testing import FakeClock, MemoryQueue

Run = Callable[..., Any]


class Buffering:
    """A delivery that is durable at its flush, unless that is broken."""

    flush_items = 3
    flush_seconds = 10.0
    default_workers = 2

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.durable: list[str] = []
        self.errors: list[BaseException] = []
        self.lock = threading.Lock()

    def open(self, context: Any) -> None:
        """Nothing to make ready."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep the id."""
        with self.lock:
            self.kept.append(job.id)
        return False

    def flush(self) -> None:
        """Make what is kept durable, or raise what the test has put there."""
        with self.lock:
            if self.errors:
                raise self.errors.pop()
            self.durable += self.kept
            self.kept = []

    def close(self) -> None:
        """Flush."""
        self.flush()


def unflushed() -> tuple[UnflushedResults, Buffering, FakeClock, list[str]]:
    """Return an unflushed with its delivery, its clock, and the ids of the jobs that it called delivered."""
    delivery, clock, delivered = Buffering(), FakeClock(), list[str]()
    return (
        UnflushedResults(
            delivery,
            lambda items: delivered.extend(i.id for i in items),
            clock,
            lambda item, reason: delivered.append(f"not {item.id}: {reason}"),
        ),
        delivery,
        clock,
        delivered,
    )


def put(box: UnflushedResults, delivery: Buffering, id_: str) -> None:
    """Deliver one result into the unflushed."""
    item = Item(Job(id_, "x"), "x", ())
    delivery.deliver(item.job, "x")
    box.add([item])


def test_stuck_while_it_cannot_flush() -> None:
    """After a flush that failed the unflushed says so, until one succeeds."""
    box, delivery, _, _ = unflushed()
    delivery.errors = [DeliveryFailed("disk full")]
    put(box, delivery, "a")
    assert (box.flush(), box.is_stuck) == (False, True)
    assert (box.flush(), box.is_stuck) == (True, False)


def test_a_full_disk_is_not_asked_for_each_result() -> None:
    """After a flush that failed the next is tried a second later, whatever comes meanwhile."""
    box, delivery, clock, delivered = unflushed()
    delivery.errors = [DeliveryFailed("disk full"), DeliveryFailed("disk full")]
    for number in range(10):
        put(box, delivery, str(number))
    box.flush_if_due()
    assert len(delivery.errors) == 1
    clock.advance(1)
    box.flush_if_due()
    clock.advance(1)
    box.flush_if_due()
    assert len(delivered) == 10


def test_a_flush_that_never_succeeds_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    """At once, and after a minute with how long it has failed and what to do: it may be a defect, not a full disk."""
    box, delivery, clock, _ = unflushed()
    delivery.errors = [ValueError("not a number") for _ in range(70)]
    put(box, delivery, "a")
    with caplog.at_level(logging.WARNING, "headrace"):
        for _ in range(70):
            clock.advance(1)
            box.flush()
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "results are kept and will be written later: ValueError: not a number"
    assert "the flush of Buffering has failed 61 times in 60 s, and the jobs of 1 result wait for it" in second


def test_flushes_that_failed_are_a_warning_of_the_run() -> None:
    """Also once one has succeeded: for how long none did at the longest, and why."""
    box, delivery, clock, _ = unflushed()
    assert box.warning() is None
    for seconds in (7, 3):
        delivery.errors = [DeliveryFailed("disk full")]
        put(box, delivery, "a")
        box.flush()
        clock.advance(seconds)
        box.flush()
        clock.advance(60)
    assert box.warning() == "the flush of Buffering failed, for 7 s at the longest: DeliveryFailed: disk full"


def test_a_flush_that_would_leave_keeps_the_results() -> None:
    """As any other error of a delivery does: no thread of the run ends."""
    box, delivery, _, delivered = unflushed()
    delivery.errors = [SystemExit(3)]
    put(box, delivery, "a")
    assert (box.flush(), delivered) == (False, [])
    assert (box.flush(), delivered) == (True, ["a"])


def test_flush_when_full() -> None:
    """The unflushed flushes after flush_items results."""
    box, delivery, _, delivered = unflushed()
    put(box, delivery, "a")
    put(box, delivery, "b")
    assert delivered == []
    put(box, delivery, "c")
    assert delivered == delivery.durable == ["a", "b", "c"]


def test_flush_when_old() -> None:
    """The unflushed flushes when its oldest result has waited flush_seconds."""
    box, delivery, clock, delivered = unflushed()
    put(box, delivery, "a")
    clock.advance(9.9)
    box.flush_if_due()
    assert delivered == []
    clock.advance(0.1)
    box.flush_if_due()
    assert delivered == ["a"]


@pytest.mark.parametrize("error", [DeliveryFailed("disk full"), ValueError("a defect")], ids=["told", "unforeseen"])
def test_failing_flush_keeps_results(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """When a flush fails, nobody is called delivered, and the next flush tries again."""
    box, delivery, _, delivered = unflushed()
    put(box, delivery, "a")
    delivery.errors.append(error)
    assert box.flush() is False
    assert delivered == []
    assert str(error) in caplog.text
    assert box.flush() is True
    assert delivered == ["a"]


def test_a_disk_that_stays_full_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A flush is tried each second, and its failure is no line of the log each time."""
    box, delivery, clock, _ = unflushed()
    delivery.errors = [DeliveryFailed("disk full") for _ in range(90)]
    put(box, delivery, "a")
    for _ in range(90):
        clock.advance(1)
        box.flush_if_due() if box.is_stuck else box.flush()
    assert delivery.errors == []
    assert caplog.text.count("disk full") == 2


def test_jobs_are_settled_after_the_flush(run: Run) -> None:
    """A job is settled as delivered only when its result is durable, and results of a rest are flushed at the end."""
    delivery = Buffering()
    ran = run([hr.stage("s", str)], range(11), delivery=delivery)
    assert ran.result.counters.delivered == 11
    assert sorted(delivery.durable) == sorted(map(str, range(11)))


def test_a_reached_limit_waits_for_no_company(run: Run) -> None:
    """A run that has all the jobs of its limit flushes at once: results that would fill the batch never come."""

    class OnceADay(Buffering):
        flush_items = 1000
        flush_seconds = 86_400.0

        def close(self) -> None:
            """Leave what was not flushed before."""

    delivery = OnceADay()
    ran = run([hr.stage("s", str)], range(11), delivery=delivery, limit=4)
    assert ran.result.counters.delivered == 4
    assert sorted(delivery.durable) == ["0", "1", "2", "3"]


def test_results_that_can_never_be_written(run: Run) -> None:
    """When the last flush fails too, the jobs go back for another try with the reason, and the run says so."""

    class Broken(Buffering):
        flush_seconds = 0.05

        def flush(self) -> None:
            """Never succeed."""
            raise DeliveryFailed("disk full")

        def close(self) -> None:
            """Do nothing."""

    queue = MemoryQueue(visibility_seconds=30)
    queue.send([encode_job(b"x", id=str(n)) for n in range(5)])
    runtime = runtime_of(QueueSource(queue), Broken())
    thread = threading.Thread(target=runtime.run, daemon=True)
    thread.start()
    give_up_at = time.monotonic() + 60
    while runtime.context.counters.received < 5 and time.monotonic() < give_up_at:
        time.sleep(0.01)
    runtime.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert runtime.context.counters.delivered == 0
    state = queue.statistics()
    assert (state.in_flight, state.visible + state.delayed) == (0, 5)
    (warning,) = runtime.warnings()
    assert "the flush of Broken failed" in warning
    assert warning.endswith("disk full; 5 results could not be written at all, and the jobs were given back")


def runtime_of(source: Any, delivery: Any) -> Runtime:
    """Return a runtime over a queue."""
    pipeline = Pipeline(source, stages=[hr.stage("s", len)], delivery=delivery)
    defaults = [stage.defaults() for stage in pipeline.stages]
    plan = {"run": {"grace_seconds": 0.2}, "source": {"wait_seconds": 0.05}}
    resolved = resolve(Plan.from_table(plan), defaults, 2)
    return Runtime(pipeline, RunContext(resolved), Equipment(budget(resolved, defaults, 2)))


def test_parquet_settles_closed_files(run: Run, tmp_path: Path) -> None:
    """With Parquet, every delivered job is in a closed file."""
    ran = run([hr.stage("s", lambda n: {"n": n})], range(25), delivery=Parquet(tmp_path / "out", rows_per_file=10))
    assert ran.ids(OutcomeKind.DELIVERED) == set(map(str, range(25)))
    table = pyarrow.parquet.read_table(tmp_path / "out")
    assert sorted(table["n"].to_pylist()) == list(range(25))
    assert not list((tmp_path / "out").glob(".*partial"))


class Dying(QueueSource):
    """Receives seven jobs, and then does nothing more, as if its process had been killed."""

    num_left = 7

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return jobs until it is dead."""
        if not self.num_left:
            time.sleep(wait_seconds)
            return []
        jobs = super().receive(min(limit, self.num_left), wait_seconds)
        self.num_left -= len(jobs or [])
        return jobs

    def tend(self) -> None:
        """Send no ack and extend no loan."""


@pytest.mark.real_clock
def test_jobs_whose_results_were_not_durable_come_again(tmp_path: Path) -> None:
    """Jobs of results that were kept and not written when their worker died are delivered again by the queue."""
    queue = MemoryQueue(visibility_seconds=1.5)
    queue.send([encode_job(b"x" * (n + 1), id=str(n)) for n in range(7)])
    first = Parquet(tmp_path / "first", rows_per_file=1000, seconds_per_file=1000)
    dead = runtime_of(Dying(queue), first)
    thread = threading.Thread(target=dead.run, daemon=True)
    thread.start()
    give_up_at = time.monotonic() + 60
    while len(first._rows) < 7 and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert queue.statistics().in_flight == 7
    second = Parquet(tmp_path / "second", rows_per_file=1000, seconds_per_file=0.1)
    runtime_of(QueueSource(queue, drain=True), second).run()
    assert sorted(pyarrow.parquet.read_table(tmp_path / "second")["id"].to_pylist()) == list("0123456")
    assert queue.statistics().visible == queue.statistics().in_flight == 0
    dead.stop()
    dead.stop()
    thread.join(60)
