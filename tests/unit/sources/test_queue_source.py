"""The queue source on a memory queue: acks in batches, loans extended, nothing twice, nothing lost."""

import contextlib
import json
import logging
import pickle
import sqlite3
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

import headrace as hr
from headrace.base.errors import SettingsError, SourceError
from headrace.base.in_flight import InFlightTable
from headrace.base.plan import SourcePlan
from headrace.base.policies.blame import SUSPICIOUS_WAITS, BlameBook, Death
from headrace.base.protocols import Queue, TellsBacklog
from headrace.base.records import DELIVERED, DeadLetter, Job, Message, Outcome, OutcomeKind, QueueStatistics
from headrace.base.worker_slot import WorkerSlot
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.sources.loans import ACK_SECONDS, MOST_OWED, MOST_UNKNOWN
from headrace.sources.queue_source import QueueSource
from headrace.testing import FakeClock, FaultyQueue, Lies, MemoryQueue, lying

RETURNED = Outcome(OutcomeKind.RETURNED)


class Bench:
    """A queue, a source on it and the clock of both."""

    def __init__(self, lies: Lies | None = None, *, seed: int = 0, drain: bool = False, **plan: Any) -> None:
        self.clock = FakeClock()
        self.queue = MemoryQueue(visibility_seconds=30.0, clock=self.clock, lies=lies or Lies(), seed=seed)
        self.faulty = FaultyQueue(self.queue)
        self.source = QueueSource(cast("Queue", self.faulty), drain=drain, clock=self.clock)
        self.source.open(SourcePlan(**plan))

    def send(self, count: int) -> None:
        """Send so many jobs."""
        self.queue.send([encode_job(f"https://e.com/{number}", id=f"j{number}") for number in range(count)])

    def take(self, limit: int = 100) -> list[Job]:
        """Return what can be received now."""
        jobs = self.source.receive(limit, 0.0)
        assert jobs is not None
        return jobs

    def tend(self, after_seconds: float = ACK_SECONDS) -> None:
        """Let time pass and tend twice: to collect, and to send what waited for company."""
        self.source.tend()
        self.clock.advance(after_seconds)
        self.source.tend()

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return cast("list[DeadLetter]", self.queue.peek(100, dead=True))

    def remaining(self) -> int:
        """Return how many messages are in the queue in any state but dead."""
        state = self.queue.statistics()
        return state.visible + state.in_flight + state.delayed


def test_a_message_becomes_a_job() -> None:
    """A job has the message's payload, id and attempt, and knows when it was sent."""
    bench = Bench()
    sent_at = bench.clock.unix_seconds()
    bench.send(1)
    bench.clock.advance(5.0)
    (job,) = bench.take()
    assert (job.id, job.payload, job.attempt, job.sent_at) == ("j0", "https://e.com/0", 1, sent_at)


def test_the_backlog_is_the_queues() -> None:
    """The source tells what waits in its queue, what it has in flight, and how old the oldest is."""
    bench = Bench()
    bench.send(3)
    bench.take(1)
    bench.clock.advance(5.0)
    backlog = bench.source.backlog()
    assert (backlog.visible, backlog.in_flight, backlog.oldest_age_seconds) == (2, 1, 5.0)
    assert isinstance(bench.source, TellsBacklog)


def test_what_happened_to_loans_is_noted() -> None:
    """What else happened than outcomes is noted by name, as far as it did."""
    bench = Bench()
    bench.send(2)
    bench.queue.send([b"no job"])
    assert bench.source.notes() == {}
    bad = bench.take()[-1]
    assert bad.verdict is not None
    bad.settle(bad.verdict)
    bench.clock.advance(20.0)  # half of the 30 s are used
    bench.source.tend()
    assert bench.source.notes() == {"source.extended": 3, "source.bad_messages": 1}


def test_delivered_is_acked() -> None:
    """A delivered job's message is gone, and nothing is in flight."""
    bench = Bench()
    bench.send(3)
    for job in bench.take():
        job.settle(DELIVERED)
    bench.tend()
    assert bench.remaining() == 0
    assert bench.source.num_in_flight == 0
    assert bench.source.statistics().delivered == 3


def test_acks_go_in_batches() -> None:
    """Ten acks go at once in one call; fewer wait for company, but not for long."""
    bench = Bench()
    bench.send(14)
    jobs = bench.take()
    for job in jobs[:10]:
        job.settle(DELIVERED)
    bench.source.tend()
    assert bench.queue.calls["ack"] == 1
    for job in jobs[10:]:
        job.settle(DELIVERED)
    bench.source.tend()
    assert bench.queue.calls["ack"] == 1
    bench.clock.advance(ACK_SECONDS)
    bench.source.tend()
    assert bench.queue.calls["ack"] == 2
    assert bench.remaining() == 0


def test_settling_calls_nobody() -> None:
    """Settle itself never calls the service, even when it does not answer."""
    bench = Bench()
    bench.send(1)
    (job,) = bench.take()
    bench.queue.available = False
    job.settle(DELIVERED)
    assert set(bench.queue.calls) == {"send", "receive"}


def test_a_second_settle_is_a_defect() -> None:
    """A job is settled once; a second time is told as a bug and changes nothing."""
    bench = Bench()
    bench.send(1)
    (job,) = bench.take()
    job.settle(DELIVERED)
    with pytest.raises(RuntimeError, match="settled twice"):
        job.settle(RETURNED)
    bench.tend()
    assert bench.remaining() == 0


def test_a_retry_is_held_back() -> None:
    """A job to be retried comes again after its delay, as the next attempt."""
    bench = Bench()
    bench.send(1)
    bench.take()[0].settle(Outcome(OutcomeKind.RETRY, "fetch: 503", delay_seconds=5.0))
    bench.tend()
    assert bench.take() == []
    bench.clock.advance(5.0)
    (again,) = bench.take()
    assert again.attempt == 2


def test_delays_share_calls() -> None:
    """Retries with delays that differ by little are sent in one call."""
    bench = Bench()
    bench.send(8)
    for number, job in enumerate(bench.take()):
        job.settle(Outcome(OutcomeKind.RETRY, delay_seconds=1.0 + number / 100))
    bench.tend()
    assert bench.queue.calls["nack"] == 1


def test_the_last_retry_is_a_dead_letter() -> None:
    """A job that was received max_receives times is dead-lettered with its reason rather than retried."""
    bench = Bench(max_receives=2)
    bench.send(1)
    for _ in range(2):
        bench.take()[0].settle(Outcome(OutcomeKind.RETRY, "fetch: 503"))
        bench.tend()
    (letter,) = bench.letters()
    assert letter.reason == "fetch: 503 (delivery 2 of 2)"
    assert (bench.source.statistics().retried, bench.source.statistics().dead_lettered) == (1, 1)


@pytest.mark.parametrize("kind", [OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED])
def test_what_cannot_be_done_is_a_dead_letter(kind: OutcomeKind) -> None:
    """Rejected and dead-lettered jobs go to the dead letters with their reason."""
    bench = Bench()
    bench.send(1)
    bench.take()[0].settle(Outcome(kind, "decode: item j0: not an image"))
    bench.tend()
    assert [letter.reason for letter in bench.letters()] == ["decode: item j0: not an image"]
    assert bench.remaining() == 0


def test_a_reason_that_is_not_unicode_is_stored(tmp_path: Path) -> None:
    """A reason may quote a file's name or a sender's bytes: what no service stores is escaped."""
    queue = open_queue(f"sqlite:///{tmp_path}/jobs.db")
    source = QueueSource(queue)
    source.open(SourcePlan())
    queue.send([encode_job("https://e.com/1")])
    (job,) = source.receive(1, 0.0) or []
    job.settle(Outcome(OutcomeKind.REJECTED, "no file caf\udce9.jpg"))
    source.close()
    (letter,) = cast("list[DeadLetter]", queue.peek(1, dead=True))
    queue.close()
    assert letter.reason == "no file caf\\udce9.jpg"


def test_returned_is_offered_at_once() -> None:
    """A returned job can be received again at once."""
    bench = Bench()
    bench.send(1)
    bench.take()[0].settle(RETURNED)
    bench.tend()
    assert len(bench.take()) == 1


def test_a_message_that_is_no_job_is_a_dead_letter() -> None:
    """A message that is not a job reaches the runtime with its verdict, under its own id, and ends by it."""
    bench = Bench()
    (message_id,) = bench.queue.send([b'{"ulr": "x"}'])
    bench.send(1)
    bad, good = bench.take()
    assert (bad.id, bad.attempt, good.id, good.verdict) == (message_id, 1, "j0", None)
    assert bad.verdict is not None
    bad.settle(bad.verdict)
    bench.tend()
    (letter,) = bench.letters()
    assert "unknown field `ulr`" in letter.reason
    assert bench.source.statistics().bad_messages == 1


def test_messages_that_are_no_jobs_are_seen(tmp_path: Path) -> None:
    """They count as received and rejected, have their lines in errors.jsonl, and no stage sees them."""
    address = f"sqlite:///{tmp_path}/jobs.db"
    queue = open_queue(address)
    queue.send([b"no job", encode_job("https://e.com/1", id="good"), b'{"ulr": "x"}'])
    seen: list[str] = []
    pipeline = hr.Pipeline(
        hr.queue(address, drain=True), stages=[hr.stage("look", seen.append, kind="cpu")], delivery=hr.collect()
    )
    counters = hr.run(pipeline, output=tmp_path / "run").counters
    errors = [json.loads(line) for line in (tmp_path / "run" / "errors.jsonl").read_text().splitlines()]
    assert (counters.received, counters.delivered, counters.rejected) == (3, 1, 2)
    assert counters.notes["source.bad_messages"] == 2
    assert sorted(error["reason"].partition(": ")[0] for error in errors) == ["message.field", "message.json"]
    assert seen == ["https://e.com/1"]
    assert len(queue.peek(10, dead=True)) == 2
    queue.close()


def test_a_poison_message_is_a_dead_letter() -> None:
    """A message that was received too often and never settled (it kills its workers) is not tried again."""
    bench = Bench(max_receives=3)
    bench.send(1)
    for attempt in (1, 2, 3):
        assert [message.receive_count for message in bench.queue.receive(1)] == [attempt]
        bench.clock.advance(31)
    (job,) = bench.take()
    assert job.verdict is not None
    job.settle(job.verdict)
    bench.tend()
    (letter,) = bench.letters()
    assert "received 4 times, allowed are 3" in letter.reason
    assert bench.source.statistics().exhausted == 1


def test_a_run_counts_a_poison_message(tmp_path: Path) -> None:
    """A message that was received too often is counted, and has its line with the reason, without anything reading it."""
    address = f"sqlite:///{tmp_path}/jobs.db"
    queue = open_queue(address, visibility_seconds=0.01)
    queue.send([b"poison"])
    parsed: list[bytes] = []
    while not any(message.receive_count > 1 + MOST_UNKNOWN for message in queue.receive(1, wait_seconds=1.0)):
        pass
    queue.close()
    source = hr.queue(address, drain=True, max_receives=1, parse=lambda body: parsed.append(body) or "")
    pipeline = hr.Pipeline(source, stages=[hr.stage("look", len, kind="cpu")], delivery=hr.collect())
    ran = hr.run(pipeline, output=tmp_path / "run")
    [error] = [json.loads(line) for line in (tmp_path / "run" / "errors.jsonl").read_text().splitlines()]
    assert (ran.counters.received, ran.counters.dead_lettered, parsed) == (1, 1, [])
    assert "times, allowed are 1, and never settled" in error["reason"]


def test_loans_are_extended() -> None:
    """A job that takes five times the visibility timeout stays ours, and nobody else receives it."""
    bench = Bench()
    bench.send(25)
    jobs = bench.take()
    for _ in range(150):
        bench.clock.advance(1.0)
        bench.source.tend()
        assert bench.queue.receive(1) == []
    assert not any(job.lost for job in jobs)
    assert bench.source.statistics().extended >= 25 * 9
    for job in jobs:
        job.settle(DELIVERED)
    bench.tend()
    assert bench.remaining() == 0
    assert {letter.id for letter in bench.letters()} == set()


def test_the_loan_that_runs_out_first_is_known() -> None:
    """What is left of it, before and after it was extended, and while the service cannot be asked to; nothing without loans."""
    bench = Bench()
    bench.send(2)
    assert bench.source.least_remaining_seconds() is None
    jobs = bench.take(1)
    bench.clock.advance(10.0)
    jobs += bench.take(1)
    assert bench.source.least_remaining_seconds() == 20.0
    bench.clock.advance(5.0)
    bench.source.tend()
    assert bench.source.least_remaining_seconds() == 25.0
    bench.faulty.refuses.add("extend")
    bench.clock.advance(24.0)
    bench.source.tend()
    assert bench.source.least_remaining_seconds() == 1.0
    for job in jobs:
        job.settle(DELIVERED)
    bench.tend()
    assert bench.source.least_remaining_seconds() is None


def test_extensions_share_calls() -> None:
    """Loans that began at nearly the same time are extended in one call."""
    bench = Bench()
    bench.send(20)
    for _ in range(10):
        bench.take(2)
        bench.clock.advance(0.1)
    bench.clock.advance(14.5)
    bench.source.tend()
    assert bench.queue.calls["extend"] == 1
    assert bench.source.statistics().extended == 20


def test_a_settled_job_is_extended_until_its_ack_arrives() -> None:
    """While the ack cannot be sent, the loan is still extended, so that nobody repeats what was delivered."""
    bench = Bench(Lies(batch_failure_ratio=0.5), seed=2)
    bench.send(40)
    for job in bench.take():
        job.settle(DELIVERED)
    for _ in range(400):
        bench.tend(0.5)
        assert bench.queue.receive(10) == []
        if not bench.source.num_in_flight:
            break
    assert bench.remaining() == 0
    assert bench.source.statistics().failed_entries > 0


def test_an_outage_is_waited_out(caplog: pytest.LogCaptureFixture) -> None:
    """While the service does not answer, acks wait, pauses grow, one warning is logged, and then all is sent."""
    bench = Bench()
    bench.send(3)
    for job in bench.take():
        job.settle(DELIVERED)
    bench.queue.available = False
    with caplog.at_level(logging.INFO, "headrace"):
        for _ in range(100):
            bench.tend(0.1)
        bench.queue.available = True
        bench.tend(6.0)
    assert bench.remaining() == 0
    assert 3 <= bench.source.statistics().failed_calls <= 12
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_loans_run_out_in_an_outage() -> None:
    """Jobs whose loan ran out while the service did not answer are marked lost, and not before."""
    bench = Bench()
    bench.send(1)
    (job,) = bench.take()
    bench.queue.available = False
    bench.clock.advance(29)
    bench.source.tend()
    assert not job.lost
    bench.clock.advance(1)
    bench.source.tend()
    assert job.lost
    bench.queue.available = True
    bench.clock.advance(10)
    job.settle(Outcome(OutcomeKind.RETRY, "too late"))
    (again,) = bench.take()
    assert (again.id, again.attempt, again.lost) == ("j0", 2, False)
    bench.tend()
    assert bench.queue.calls.get("nack") is None
    assert bench.source.statistics().lost == 1


def test_a_stale_extension_means_lost() -> None:
    """When the queue says that the delivery is no longer ours, the job is told."""
    bench = Bench()
    bench.send(1)
    (job,) = bench.take()
    bench.clock.advance(31)
    assert len(bench.queue.receive(1)) == 1
    bench.source.tend()
    assert job.lost
    assert bench.source.num_in_flight == 0


def test_a_late_result_is_not_repeated() -> None:
    """A job that was delivered although its loan was lost is acked, not done again, when it comes once more."""
    bench = Bench()
    bench.send(1)
    (job,) = bench.take()
    bench.clock.advance(31)
    bench.queue.receive(1)
    bench.source.tend()
    job.settle(DELIVERED)
    bench.tend()
    assert bench.source.statistics().stale == 1
    bench.clock.advance(31)
    assert bench.take() == []
    bench.tend()
    assert bench.remaining() == 0
    assert bench.source.statistics().redelivered == 1


def test_a_second_delivery_is_adopted() -> None:
    """A message that comes again while we work on it makes no second job, and is acked with its latest receipt."""
    bench = Bench(Lies(duplicate_ratio=1.0))
    bench.send(1)
    (job,) = bench.take()
    assert bench.take() == []
    job.settle(DELIVERED)
    bench.tend()
    assert bench.remaining() == 0
    assert bench.source.statistics().adopted == 1


def test_a_message_that_comes_again_while_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message received again before the answer to its nack arrives is given back again, not lent to nobody."""
    bench = Bench()
    bench.send(1)
    (job,) = bench.take()
    nack = bench.queue.nack

    def answer_late(receipts: list[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        failures = nack(receipts, delay_seconds=delay_seconds)
        if bench.queue.calls["nack"] == 1:
            assert bench.take() == []
        return failures

    monkeypatch.setattr(bench.queue, "nack", answer_late)
    job.settle(RETURNED)
    bench.tend()
    bench.tend()
    (again,) = bench.take()
    assert (again.id, again.attempt) == (job.id, 3)


def test_an_ack_that_did_nothing_is_repeated() -> None:
    """A message that comes again after its ack "succeeded" is acked again and not done again."""
    bench = Bench(Lies(resurrect_ratio=0.7), seed=1)
    bench.send(20)
    done: Counter[str] = Counter()
    for _ in range(100):
        for job in bench.take():
            done[job.id] += 1
            job.settle(DELIVERED)
        bench.tend()
    assert set(done.values()) == {1}
    assert len(done) == 20
    assert bench.remaining() == 0


def test_an_entry_that_fails_is_tried_until_it_is_carried_out() -> None:
    """Acks of which a part fails are tried again with growing pauses, however long that lasts, as whole calls are."""
    bench = Bench()
    bench.faulty.fails["ack"] = "InternalError"
    bench.send(30)
    for job in bench.take():
        job.settle(DELIVERED)
    for _ in range(2400):  # ten minutes
        bench.tend()
    assert bench.source.num_in_flight == 30
    assert bench.source.statistics().lost == 0
    assert bench.faulty.calls["ack"] < 150
    bench.faulty.fails.clear()
    bench.tend(5.0)
    assert (bench.remaining(), bench.source.statistics().given_up) == (0, 0)


def test_what_fails_for_good_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """An ack that the service refuses for good is said once and left to the visibility timeout; the others go on."""
    bench = Bench()
    bench.faulty.fails["ack"] = "final: InvalidReceipt: no"
    bench.send(1)
    bench.take()[0].settle(DELIVERED)
    bench.tend()
    assert bench.source.num_in_flight == 0
    assert bench.source.statistics().given_up == 1
    assert caplog.text.count("InvalidReceipt: no") == 1


def test_letters_that_cannot_be_written_hold_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Where no dead letter can be written, acks and retries go on, the messages stay, and it is said once in a minute."""
    bench = Bench()
    bench.faulty.refuses.add("dead_letter")
    bench.queue.send([b"no job"])
    bench.send(50)
    for number, job in enumerate(bench.take()):
        job.settle(job.verdict or (DELIVERED if number % 2 else Outcome(OutcomeKind.RETRY, "away", 600.0)))
    for _ in range(400):  # a hundred seconds
        bench.tend()
    assert (bench.remaining(), bench.source.num_in_flight) == (26, 1)  # the retried ones, and the one that is no job
    assert bench.queue.receive(10) == []
    assert bench.faulty.calls["dead_letter"] < 20
    assert caplog.text.count("dead letters cannot be written") == 2
    bench.faulty.refuses.clear()
    bench.tend(30.0)
    bench.tend()
    assert len(bench.letters()) == 1


def test_many_letters_that_cannot_be_written_go_back() -> None:
    """Beyond a hundred, the oldest go back to their queue for a quarter of an hour rather than fill the memory."""
    bench = Bench()
    bench.faulty.refuses.add("dead_letter")
    for _ in range(5):
        bench.queue.send([b"no job"] * 100)
        for job in bench.take():
            assert job.verdict is not None
            job.settle(job.verdict)
        bench.tend(10.0)
    assert bench.source.num_in_flight <= 100
    assert bench.source.notes()["source.put_aside"] >= 400
    bench.faulty.refuses.clear()
    bench.clock.advance(900.0)
    for job in bench.take(1000):
        assert job.verdict is not None
        job.settle(job.verdict)
    bench.tend()
    assert len(bench.queue.peek(1000, dead=True)) == 500


def test_a_letter_that_breaks_its_queue_waits_alone() -> None:
    """An error that one letter brings about, of whatever kind, holds up no other letter and ends no worker."""
    bench = Bench()
    bench.faulty.breaks_on = b"poison"
    bench.queue.send([b"a", b"poison", b"b"])
    for job in bench.take():
        assert job.verdict is not None
        job.settle(job.verdict)
    for _ in range(40):
        bench.tend()
    assert sorted(letter.body for letter in bench.letters()) == [b"a", b"b"]
    assert bench.source.num_in_flight == 1


def test_draining_ends_beside_letters_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """A queue in which nothing is left but messages whose letters cannot be written is empty, loudly."""
    bench = Bench(drain=True)
    bench.faulty.refuses.add("dead_letter")
    bench.queue.send([b"no job"] * 3)
    for job in bench.take():
        assert job.verdict is not None
        job.settle(job.verdict)
    bench.tend()
    assert bench.source.receive(1, 0.0) == []
    for _ in range(600):
        bench.tend()
    assert bench.source.receive(1, 0.0) is None
    assert "empty but for 3 messages whose dead letters cannot be written" in caplog.text


def test_letters_go_in_batches_and_loans_first() -> None:
    """A flood of messages that are no jobs is buried in few calls, and no loan runs out meanwhile."""
    bench = Bench()
    bench.queue.send([b"no job"] * 1000)
    bench.send(1)
    jobs = bench.take(1001)
    for job in jobs[:-1]:
        assert job.verdict is not None
        job.settle(job.verdict)
    bench.clock.advance(20.0)
    bench.tend()
    assert len(bench.queue.peek(2000, dead=True)) == 1000
    assert bench.faulty.calls["dead_letter"] == 10
    assert list(bench.faulty.calls).index("extend") < list(bench.faulty.calls).index("dead_letter")
    assert not jobs[-1].lost


def test_nothing_is_received_while_acks_fail(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where jobs can be received and not acked, a worker takes some hundreds and no more, says why, and goes on later."""
    monkeypatch.setattr("headrace.sources.queue_source.HELD_OFF_SECONDS", 0.0)
    bench = Bench()
    bench.faulty.refuses.add("ack")
    bench.send(2000)
    for _ in range(100):
        for job in bench.take(100):
            job.settle(DELIVERED)
        bench.tend()
    assert bench.source.num_in_flight < 500
    assert caplog.text.count("nothing more is received: delivered jobs cannot be acked") == 1
    bench.faulty.refuses.clear()
    bench.tend(5.0)
    bench.tend()
    assert bench.source.num_in_flight == 0
    assert len(bench.take(100)) == 100


def test_outcomes_that_wait_are_bounded() -> None:
    """A worker that settles faster than its queue takes acks stops receiving at some thousands of them."""
    bench = Bench()
    bench.send(6000)
    for _ in range(60):
        for job in bench.take(100):
            job.settle(DELIVERED)
    assert bench.source.num_in_flight <= MOST_OWED
    bench.tend()
    assert len(bench.take(100)) == 100


def test_extensions_that_fail_are_not_tried_all_the_time() -> None:
    """An extension that fails for one message is tried again some times, not at every look, until its loan has run out."""
    bench = Bench()
    bench.faulty.fails["extend"] = "final: Total VisibilityTimeout"
    bench.send(1)
    (job,) = bench.take()
    for _ in range(1200):  # 36 s
        bench.source.tend()
        bench.clock.advance(0.03)
    assert bench.faulty.calls["extend"] <= 12
    assert job.lost


def test_a_refusal_that_lasts_ends_the_run() -> None:
    """A service that refuses every receive for a minute is an error that names why; an outage is waited out."""
    bench = Bench()
    bench.queue.available = False
    for _ in range(3):
        assert bench.source.receive(1, 0.0) == []
        bench.clock.advance(100.0)
    bench.queue.available = True
    bench.faulty.refuses.add("receive")
    assert bench.source.receive(1, 0.0) == []
    bench.clock.advance(30.0)
    assert bench.source.receive(1, 0.0) == []
    bench.clock.advance(31.0)
    with pytest.raises(SourceError, match="receive: refused by the test; it refused every receive for 60 s"):
        bench.source.receive(1, 0.0)


def test_closing_leaves_a_call_behind_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is not answered keeps `close` for some seconds, not for as long as the call."""
    monkeypatch.setattr("headrace.sources.queue_source.CLOSING_SECONDS", 0.05)
    bench = Bench()
    answer = threading.Event()
    bench.faulty.before["ack"] = lambda: answer.wait(60.0)
    bench.send(1)
    bench.take()[0].settle(DELIVERED)
    bench.source.close()
    assert not answer.is_set()
    assert bench.source.num_in_flight == 1
    answer.set()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_queue_does_each_job_is_done(seed: int) -> None:
    """On a queue that does everything wrong at once, each job is done once by this worker and none is lost."""
    queue = lying(seed)
    queue.send([encode_job(f"https://e.com/{number}", id=str(number)) for number in range(200)])
    source = QueueSource(queue, drain=True)
    source.open(SourcePlan())
    done: Counter[str] = Counter()
    while (jobs := source.receive(10, 0.01)) is not None:
        for job in jobs:
            done[job.id] += 1
            job.settle(DELIVERED)
        source.tend()
    source.close()
    assert done == Counter({str(number): 1 for number in range(200)})


def test_draining_ends_when_all_is_done() -> None:
    """A draining source ends when nothing is visible, held back or in flight anywhere."""
    bench = Bench(drain=True)
    bench.send(2)
    (job,) = bench.take(1)
    (elsewhere,) = bench.queue.receive(1)
    assert bench.source.receive(1, 0.0) == []
    job.settle(DELIVERED)
    bench.tend()
    assert bench.source.receive(1, 0.0) == []
    bench.queue.nack([elsewhere.receipt], delay_seconds=5)
    assert bench.source.receive(1, 0.0) == []
    bench.clock.advance(5)
    bench.take()[0].settle(DELIVERED)
    bench.tend()
    assert bench.source.receive(1, 0.0) is None


def test_without_drain_it_never_ends() -> None:
    """An empty queue is no end unless asked for."""
    assert Bench().source.receive(1, 0.0) == []


def test_receiving_tolerates_an_outage() -> None:
    """A receive that the service does not answer is an empty one."""
    bench = Bench()
    bench.queue.available = False
    assert bench.source.receive(1, 0.0) == []


def test_closing_sends_the_last_acks() -> None:
    """Close sends what waited for company, and leaves a queue that was passed in open."""
    bench = Bench()
    bench.send(1)
    bench.take()[0].settle(DELIVERED)
    bench.source.close()
    bench.source.close()
    assert bench.remaining() == 0


def test_closing_in_an_outage_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Close does not wait for a service that does not answer; it says what was left."""
    bench = Bench()
    bench.send(1)
    bench.take()[0].settle(DELIVERED)
    bench.queue.available = False
    with caplog.at_level(logging.WARNING, "headrace"):
        bench.source.close()
    assert "1 messages were not settled" in caplog.text


def test_prefetch_follows_the_timeout() -> None:
    """No more is in flight than can be done within the timeout, or than the Plan says."""
    bench = Bench()
    assert bench.source.in_flight_limit(None, 8) is None
    assert bench.source.in_flight_limit(10.0, 8) == 300
    assert bench.source.in_flight_limit(0.1, 8) == 8
    assert Bench(max_in_flight=50).source.in_flight_limit(10.0, 8) == 50


def test_the_plan_wins(tmp_path: Path) -> None:
    """The Plan's visibility timeout wins over the source's, and the source's over the address's."""
    address = f"sqlite:///{tmp_path}/jobs.db?visibility=60s"
    for visibility, plan, expected in ((None, None, 60), ("90s", None, 90), ("90s", 120.0, 120)):
        source = QueueSource(address, visibility=visibility)
        source.open(SourcePlan(visibility_seconds=plan))
        assert source.in_flight_limit(1.0, 1) == expected
        source.close()


def test_what_cannot_be_applied_is_an_error() -> None:
    """Another timeout than that of a queue passed in is an error rather than ignored."""
    source = QueueSource(MemoryQueue(visibility_seconds=30), visibility="60s")
    with pytest.raises(SettingsError, match=r"60\.0 was asked for"):
        source.open(SourcePlan())


def test_making_one_connects_nothing(tmp_path: Path) -> None:
    """A source is made and pickled without its service; a wrong address is told at once."""
    source = QueueSource("redis://nowhere.invalid/0")
    assert isinstance(pickle.loads(pickle.dumps(source)), QueueSource)
    with pytest.raises(SettingsError, match="third slash"):
        QueueSource("sqlite://jobs.db")


def test_threads_share_a_source(tmp_path: Path) -> None:
    """Receivers, workers and a supervisor side by side on a real file: each job once, and an orderly end."""
    address = f"sqlite:///{tmp_path}/jobs.db"
    queue = open_queue(address)
    queue.send([encode_job(f"https://e.com/{number}", id=str(number)) for number in range(1000)])
    source = QueueSource(address, drain=True)
    source.open(SourcePlan())
    done: list[str] = []
    ended = threading.Event()

    def supervise() -> None:
        while not ended.wait(0.005):
            source.tend()

    def work() -> None:
        while (jobs := source.receive(7, 0.05)) is not None:
            for job in jobs:
                done.append(job.id)
                job.settle(DELIVERED)

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(work) for _ in range(3)]:
            future.result()
    ended.set()
    supervisor.join()
    source.close()
    assert Counter(done) == Counter(str(number) for number in range(1000))
    assert source.statistics().delivered == 1000
    assert queue.statistics() == QueueStatistics(0, 0, 0, 0, None)
    queue.close()


def test_a_stale_ack_that_succeeds_is_not_trusted() -> None:
    """The ack of a lost loan is answered with success and does nothing, as SQS's is: the message comes again, and is known."""
    bench = Bench(Lies(stale_acks_succeed=True))
    bench.send(1)
    (job,) = bench.take()
    bench.clock.advance(31.0)  # the worker stood still
    assert len(bench.queue.receive(1)) == 1  # and somebody else has the message
    job.settle(DELIVERED)
    bench.tend()
    assert bench.remaining() == 1
    bench.clock.advance(31.0)  # who forgets it
    assert bench.take() == []
    bench.tend()
    assert bench.remaining() == 0
    assert bench.source.statistics().redelivered == 1


def test_a_postponed_job_uses_up_no_delivery() -> None:
    """However often its receiver is away, a job with a result comes again as the first delivery, with the result."""
    bench = Bench(max_receives=2)
    bench.send(1)
    for number in range(20):
        (job,) = bench.take()
        assert (job.attempt, job.kept) == (1, f"{number - 1}".encode() if number else b"")
        job.settle(Outcome(OutcomeKind.RETRY, "away", 5.0, kept=f"{number}".encode()))
        bench.tend()
        assert bench.take() == []
        bench.clock.advance(5.0)
    assert bench.letters() == []
    assert bench.source.statistics().postponed == 20


def test_a_result_outlives_whatever_ends_its_job() -> None:
    """A dead letter keeps the result that its job came with, also when nobody tried to deliver it this time."""
    bench = Bench(max_receives=3)
    bench.send(1)
    (job,) = bench.take()
    job.settle(Outcome(OutcomeKind.RETRY, "away", kept=b"{}"))
    bench.tend()
    for _ in range(3):  # workers that die
        bench.clock.advance(31.0)
        assert len(bench.queue.receive(1)) == 1
    bench.clock.advance(31.0)
    (job,) = bench.take()
    assert job.verdict is not None
    job.settle(job.verdict)
    bench.tend()
    (letter,) = bench.letters()
    assert letter.kept == b"{}"


def test_postponing_goes_in_batches_and_survives_failures() -> None:
    """Whatever fails is tried again, and every message is postponed once."""
    bench = Bench(Lies(batch_failure_ratio=0.4), seed=3)
    bench.send(30)
    for job in bench.take():
        job.settle(Outcome(OutcomeKind.RETRY, "away", 600.0, kept=job.id.encode()))
    for _ in range(40):
        bench.tend()
    assert bench.source.num_in_flight == 0
    assert bench.queue.statistics().delayed == 30
    assert bench.queue.calls["postpone"] < 30
    bench.clock.advance(600.0)
    assert {job.id: job.kept for job in bench.take()} == {f"j{n}": f"j{n}".encode() for n in range(30)}


@pytest.fixture
def traced() -> Iterator[None]:
    """Count what is allocated during the test."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def send_megabytes(bench: Bench, count: int) -> None:
    """Send so many jobs of a million bytes each."""
    bench.queue.send([encode_job(b"\xab" * 1_000_000, id=f"j{number}") for number in range(count)])


@pytest.mark.usefixtures("traced")
def test_what_has_ended_is_let_go() -> None:
    """Once the queue has confirmed the end of a job, neither its message nor its payload stays in memory."""
    bench = Bench()
    before, _ = tracemalloc.get_traced_memory()
    send_megabytes(bench, 10)
    for number, job in enumerate(bench.take()):
        job.settle(DELIVERED if number % 2 else Outcome(OutcomeKind.RETRY, "away", 600.0, kept=b"{}"))
    del job
    bench.tend()
    bench.queue.purge()
    after, _ = tracemalloc.get_traced_memory()
    assert bench.source.num_in_flight == 0
    assert after - before < 1_000_000


@pytest.mark.usefixtures("traced")
def test_what_waits_for_its_ack_is_let_go() -> None:
    """While the service does not answer, delivered jobs wait for their acks as receipts, without their payloads."""
    bench = Bench()
    send_megabytes(bench, 10)
    before, _ = tracemalloc.get_traced_memory()
    for job in bench.take():
        job.settle(DELIVERED)
    del job
    bench.queue.available = False
    bench.tend()
    after, _ = tracemalloc.get_traced_memory()
    assert bench.source.num_in_flight == 10
    assert after - before < 1_000_000
    bench.queue.available = True
    bench.tend(6.0)
    assert bench.remaining() == 0


def test_what_cannot_be_read_is_rejected_alone() -> None:
    """A message that the queue itself cannot read is rejected with a code, and the good one beside it is a job."""
    bench = Bench()
    bench.queue.put_malformed(b"\xff?")
    bench.send(1)
    bad, good = bench.take()
    assert (good.id, good.verdict) == ("j0", None)
    assert bad.verdict is not None
    assert bad.verdict.kind is OutcomeKind.REJECTED
    bad.settle(bad.verdict)
    good.settle(DELIVERED)
    bench.tend()
    (letter,) = bench.letters()
    assert letter.reason.startswith("message.malformed: ")
    assert letter.body == b"\xff?"
    assert bench.remaining() == 0


def test_messages_with_one_id_are_as_many_jobs(tmp_path: Path) -> None:
    """An id that senders chose, the same for three messages, makes none of them a copy of another."""
    path = tmp_path / "jobs.db"
    queue = open_queue(f"sqlite:///{path}")
    queue.send([encode_job(f"https://e.com/{number}", id=f"j{number}") for number in range(3)])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE messages SET id = 'same'")
    source = QueueSource(queue, drain=True)
    source.open(SourcePlan())
    done = []
    for _ in range(3):
        for job in source.receive(1, 0.0) or []:
            done.append(job.id)
            job.settle(DELIVERED)
    source.close()
    assert done == ["j0", "j1", "j2"]
    assert queue.statistics().visible == queue.statistics().in_flight == 0
    queue.close()


class _Dear(MemoryQueue):
    """A queue of which each call costs money, and which notes how long it is to wait."""

    idle_wait_seconds = 20.0

    def __init__(self) -> None:
        super().__init__(clock=FakeClock())
        self.waits: list[float] = []

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Note the wait, and do not."""
        self.waits.append(wait_seconds)
        return super().receive(max_messages)


def test_an_idle_worker_makes_few_calls_where_they_cost() -> None:
    """After some empty receives each waits longer, up to what the queue says; a message makes them short again."""
    queue = _Dear()
    source = QueueSource(queue)
    source.open(SourcePlan())
    for _ in range(20):
        source.receive(1, 1.0)
    queue.send([encode_job("https://e.com/1")])
    assert len(source.receive(1, 1.0) or []) == 1
    source.receive(1, 1.0)
    source.close()
    assert queue.waits[:14] == [1.0] * 10 + [2.0, 4.0, 8.0, 16.0]
    assert queue.waits[14:] == [20.0] * 7 + [1.0]


def seated(parse: Callable[[bytes], Any] | None = None) -> tuple[MemoryQueue, QueueSource, WorkerSlot]:
    """Return a queue of `first` and `second`, a source of three deliveries on it, and its slot, that knows nothing."""
    clock = FakeClock()
    queue = MemoryQueue(visibility_seconds=30.0, clock=clock)
    slot = WorkerSlot(0, 1, 1, InFlightTable(8), BlameBook(), None)
    source = QueueSource(cast("Queue", queue), max_receives=3, parse=parse, clock=clock)
    source.take(slot)
    source.open(SourcePlan())
    queue.send([encode_job("https://e.com/1", id="first"), encode_job("https://e.com/2", id="second")])
    return queue, source, slot


def receive_and_return(queue: MemoryQueue, times: int) -> None:
    """Count deliveries of all that waits, of which this machine knows nothing."""
    for _ in range(times):
        queue.nack([message.receipt for message in queue.receive(10, wait_seconds=0.0)])


def take(source: QueueSource) -> list[Job]:
    """Return what is received, or goes out of what was held back."""
    return [job for _ in range(2) for job in source.receive(10, 0.0) or []]


def test_what_was_received_too_often_and_never_tried_here_runs_alone_once() -> None:
    """Where the memory of kills is lost, messages get one try each, alone; the next time they are given up."""
    queue, source, slot = seated()
    receive_and_return(queue, 6)
    (first,) = take(source)
    assert (first.id, first.verdict) == ("first", None)
    assert [message.in_work for message in slot.table.messages()] == [True, False]
    first.settle(RETURNED)
    (second,) = take(source)
    assert second.id == "second"
    second.settle(DELIVERED)
    source.tend()
    cast("FakeClock", source._clock).advance(ACK_SECONDS)
    source.tend()
    (again,) = take(source)
    assert again.verdict is not None
    assert again.verdict.kind is OutcomeKind.DEAD_LETTERED


def test_one_that_was_tried_here_or_came_much_too_often_is_given_up() -> None:
    """Neither a message whose death alone is known, nor one far beyond the allowed, gets another try."""
    queue, source, slot = seated()
    receive_and_return(queue, 6)
    (one, other) = queue.receive(10, wait_seconds=0.0)
    queue.nack([one.receipt, other.receipt])
    slot.blame.note_death(Death("SIGKILL", False, [one.id], []))
    jobs = {job.id: job.verdict for job in source.receive(10, 0.0) or []}
    assert jobs[one.id] is not None
    queue, source, slot = seated()
    receive_and_return(queue, 3 + MOST_UNKNOWN)
    assert [job.verdict is not None for job in source.receive(10, 0.0) or []] == [True, True]


def test_a_message_that_is_parsed_is_in_work_and_the_others_are_known() -> None:
    """Whoever kills in `parse` is the one in work, and those received with it waited."""
    seen: list[list[bool]] = []

    def parse(body: bytes) -> str:
        seen.append([message.in_work for message in slot.table.messages()])
        return "https://e.com/x"

    _, source, slot = seated(parse)
    source.receive(10, 0.0)
    assert seen == [[True, False], [False, True]]
    assert [message.in_work for message in slot.table.messages()] == [False, False]


def test_a_suspect_is_parsed_only_when_alone() -> None:
    """Nothing of what repeatedly waited at unexplained deaths is read before it is its turn."""
    parsed: list[bytes] = []

    def parse(body: bytes) -> str:
        parsed.append(body)
        return "https://e.com/x"

    queue, source, slot = seated(parse)
    receive_and_return(queue, SUSPICIOUS_WAITS)
    ids = [message.id for message in queue.peek(10)]
    for _ in range(SUSPICIOUS_WAITS):
        slot.blame.note_death(Death("SIGKILL", False, [], ids))
    assert source.receive(10, 0.0) == []
    assert parsed == []
    (job,) = source.receive(10, 0.0) or []
    assert len(parsed) == 1
    job.settle(DELIVERED)
    assert len(source.receive(10, 0.0) or []) == 1
    assert len(parsed) == 2
