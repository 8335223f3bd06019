"""Results that are there and cannot be delivered for now, or whose job is somebody else's by now."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

import headrace as hr
from headrace.base.errors import (
    Crowded,
    DeliveryFailed,
    DeliveryPostponed,
    DeliveryRejected,
    FetchPostponed,
    ItemError,
    ItemFailed,
)
from headrace.base.policies.retry import PostponePolicy
from headrace.base.protocols import KeepsResults
from headrace.base.records import Job, Kept, OutcomeKind
from headrace.delivery.callback import Callback
from headrace.delivery.collect import Collect
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import run as execute
from headrace.pipeline.item import Item
from headrace.pipeline.reasons import failure_of
from headrace.pipeline.undelivered import of_postponed, of_undelivered
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource
from headrace.stages.stage import Stage
from headrace.testing import ListSource, MemoryQueue

NOW = 1_800_000_000.0


class Keeper:
    """Keeps a result as text of all that is kept."""

    postponement = PostponePolicy(give_up_seconds=100.0, base_seconds=4.0)

    def keep(self, job: Job, kept: Kept) -> bytes:
        """Return it as text."""
        if kept.result == "no JSON":
            raise DeliveryRejected("no JSON")
        return f"{job.id} {kept.result} {kept.since} {kept.tries}".encode()

    def take_up(self, job: Job) -> Kept | None:
        """Nothing is taken up here."""
        return None


def outcome(error: ItemError, kept: Kept | None = None, value: object = "result") -> Any:
    """Return how a job ends whose delivery failed so."""
    item = Item(Job("job-1", b""), value, ())
    item.kept = kept
    return of_undelivered(item, error, Keeper(), NOW, 0.5)


def test_callbacks_keep_results() -> None:
    """The callback is such a delivery."""
    assert isinstance(Callback(), KeepsResults)
    assert not isinstance(hr.collect(), KeepsResults)


def test_the_first_failure_begins_the_time() -> None:
    """The result is kept with the moment, and held back for a part of the first pause."""
    got = outcome(DeliveryFailed("away"))
    assert (got.kind, got.delay_seconds, got.undelivered) == (OutcomeKind.RETRY, 2.0, True)
    assert got.kept == f"job-1 result {NOW} 1".encode()


def test_the_history_of_a_result_is_kept_without_it() -> None:
    """Where the source has no room for the result, the time goes on all the same."""
    assert outcome(DeliveryFailed("away")).kept_brief == f"job-1 UNSET {NOW} 1".encode()
    again = outcome(DeliveryFailed("away"), Kept(msgspec.UNSET, NOW - 60, 4))
    assert (again.kept, again.kept_brief) == tuple(
        f"job-1 {what} {NOW - 60} 5".encode() for what in ("result", "UNSET")
    )


def test_a_destination_that_is_left_alone_sets_the_pause() -> None:
    """It is not offered before it can be called."""
    error = DeliveryPostponed("away")
    error.retry_after_seconds = 30.0
    assert outcome(error).delay_seconds == 32.0


def test_the_time_goes_on() -> None:
    """The next failures keep the moment of the first; one from the future is now."""
    assert outcome(DeliveryFailed("away"), Kept("result", NOW - 60, 4)).kept == f"job-1 result {NOW - 60} 5".encode()
    assert outcome(DeliveryFailed("away"), Kept("result", NOW + 999, 4)).kept == f"job-1 result {NOW} 5".encode()


def test_the_time_ends() -> None:
    """Then the job is dead, with reason and result, and a redrive gives it all its time again."""
    got = outcome(DeliveryFailed("away"), Kept("result", NOW - 100, 4))
    assert got.kind is OutcomeKind.DEAD_LETTERED
    assert got.reason == "away (given up after 100 s: give_up_seconds)"
    assert got.kept == b"job-1 result None 0"


def test_a_refusal_is_final() -> None:
    """A receiver that will never take it ends the job at once, with its result."""
    got = outcome(DeliveryRejected("no"), Kept("result", NOW - 5, 1))
    assert (got.kind, got.reason, got.kept) == (OutcomeKind.REJECTED, "no", b"job-1 result None 0")


def test_what_cannot_be_written_down_is_not_kept() -> None:
    """That is why it was refused."""
    assert outcome(DeliveryRejected("no JSON"), value="no JSON").kept == b""


@pytest.mark.parametrize("lost_in", ["work", "deliver"])
def test_a_result_that_is_there_is_sent_though_the_loan_is_lost(lost_in: str) -> None:
    """Lost before the work is done, a job is dropped; lost when its result is there, the result is sent all the same."""
    source = ListSource([1])
    sent = []

    def lose(stage: str) -> None:
        if stage == lost_in:
            source.in_flight[0].lost = True

    def first(value: int) -> int:
        lose("work")
        return value

    def last(value: int) -> int:
        lose("deliver")
        return value

    class Sends(hr.collect):
        def deliver(self, job: Job, result: Any) -> bool:
            """Note it."""
            sent.append(job.id)
            return True

    pipeline = Pipeline(
        source, stages=[hr.stage("first", first), hr.stage("last", last)], delivery=cast("Any", Sends())
    )
    table = {"source": {"wait_seconds": 0.05}, "stages": {"last": {"executor": "thread"}}}
    result = execute(pipeline, hr.Plan.from_table(table))
    assert sent == (["0"] if lost_in == "deliver" else [])
    assert (result.counters.delivered, result.counters.lost) == ((1, 0) if lost_in == "deliver" else (0, 1))


def test_the_item_of_a_job_that_is_not_routed_has_no_result() -> None:
    """A task that nobody takes is rejected as ever, with a delivery that keeps results too."""

    class Doubler(hr.Module):
        input = hr.ArrayInput()

        def process(self, batch: Any) -> list[Any]:
            """Return what came."""
            return list(batch)

    callback = Callback("http://127.0.0.1:1/")
    source = ListSource([1], tasks=["unknown"])
    pipeline = Pipeline(source, modules={"known": Doubler()}, delivery=callback)
    execute(pipeline, hr.Plan.from_table({"source": {"wait_seconds": 0.05}, "model": {"engine": "emulated"}}))
    assert source.final(OutcomeKind.REJECTED) == {"0"}


def postponed(error: ItemFailed, *, keeps: bool = True, age: float = 60.0) -> Any:
    """Return how a job ends for which nothing was tried."""
    job = Job("job-1", b"")
    job.may_wait, job.sent_at = keeps, NOW - age
    error.retry_after_seconds = 10.0
    return of_postponed(Item(job, b"", ()), error, NOW, 0.5)


def test_what_was_not_tried_is_as_good_as_before() -> None:
    """A queue offers the job again as if it was new, after the pause and a part of it."""
    got = postponed(FetchPostponed("left alone"))
    assert (got.kind, got.delay_seconds, got.spared) == (OutcomeKind.RETRY, 12.5, True)


def test_a_source_that_cannot_offer_it_as_new_counts_a_try() -> None:
    """Or a list with a server that is gone would never come to its end."""
    assert postponed(FetchPostponed("left alone"), keeps=False) is None


def test_nobody_waits_for_ever() -> None:
    """A job older than a day counts its tries for a server that is away, but never for being one of too many."""
    assert postponed(FetchPostponed("left alone"), age=90_000) is None
    assert postponed(Crowded("too many"), age=90_000).spared


def test_one_of_too_many_has_not_failed() -> None:
    """Its share is full: the job goes back untried, whether it would have been worked on or delivered."""
    for got in (postponed(Crowded("share.full: too many")), outcome(Crowded("share.full: too many"))):
        assert (got.kind, got.is_put_aside, got.undelivered) == (OutcomeKind.RETURNED, True, False)
        assert failure_of(Job("job-1", b""), got) is None
    assert got.kept == f"job-1 result {NOW} 1".encode()


def test_how_long_is_said_by_the_error() -> None:
    """A stage whose options say less than a day is believed."""
    error = FetchPostponed("left alone")
    error.patience_seconds = 50.0
    assert postponed(error, age=40.0).spared
    assert postponed(error, age=60.0) is None


def test_a_postponed_download_uses_up_no_delivery() -> None:
    """Through a queue: a job whose server is left alone comes again with a receive count of one, and is done in the end."""
    queue = MemoryQueue()
    queue.send([encode_job(b"x", id="job-1")])
    attempts: list[int] = []

    class Fetch(Stage):
        def open(self, context: Any) -> Any:
            return self.fetch

        def fetch(self, value: bytes) -> bytes:
            attempts.append(1)
            if len(attempts) < 8:
                raise FetchPostponed("http.left_alone: away")
            return value

    execute(Pipeline(QueueSource(queue, drain=True, max_receives=2), stages=[Fetch("fetch")], delivery=Collect()), None)
    assert len(attempts) == 8
    assert queue.statistics().dead == 0
