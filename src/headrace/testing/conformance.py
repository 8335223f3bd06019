"""The suite that every queue adapter passes. Needs pytest.

    from headrace.testing.conformance import QueueConformance

    class TestMyQueue(QueueConformance):
        @pytest.fixture
        def make_queue(self):
            return lambda: MyQueue(..., visibility_seconds=self.visibility_seconds)  # each one the same queue

`make_queue` opens the queue under test, empty at the start of each test; calling it twice opens it twice, as two workers
would. A queue into which others can write past its adapter gives `put_malformed` too: calls that put what is no message of it.
Real services have no fake clock, so the suite uses a visibility timeout of a second and polls for what must come.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from headrace.base.plan import SourcePlan
from headrace.base.protocols import STALE, AdoptsLoans, Queue
from headrace.base.records import DELIVERED, Burial, DeadLetter, Message, Postponed
from headrace.sources.queue_source import QueueSource
from headrace.testing.faulty_queue import FaultyQueue

#: How long the suite polls for what must come in the end.
PATIENCE_SECONDS = 30.0


class QueueConformance:
    """What `headrace.base.protocols.Queue` promises, one test per promise."""

    visibility_seconds = 1.0
    """Loans of the queue under test; whole seconds for services that know no parts."""
    wait_seconds = 1.0
    """A receive that must find something waits this long per call."""
    binary_bodies = True
    """Bodies may be any bytes."""

    @pytest.fixture
    def queue(self, make_queue: Callable[[], Queue]) -> Iterator[Queue]:
        """Open the queue under test."""
        queue = make_queue()
        with contextlib.closing(queue):
            yield queue

    @pytest.fixture
    def put_malformed(self) -> Sequence[Callable[[], object]]:
        """Return calls that each put one thing into the queue, past the adapter, that it cannot read."""
        pytest.skip("this queue names nothing that its adapter cannot read: give the fixture put_malformed")

    def take(self, queue: Queue, count: int, *, patience_seconds: float = PATIENCE_SECONDS) -> list[Message]:
        """Return this many messages, received in as many calls as it needs; fewer when patience ends."""
        give_up_at = time.monotonic() + patience_seconds
        messages: list[Message] = []
        while len(messages) < count and time.monotonic() < give_up_at:
            messages += queue.receive(count - len(messages), wait_seconds=self.wait_seconds)
        return messages

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Return whether the condition came true while patience lasted."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.02)
        return True

    def wait_out_loan(self) -> None:
        """Return when loans given before the call have run out."""
        time.sleep(self.visibility_seconds + 0.1)

    def test_is_a_queue(self, queue: Queue) -> None:
        """The adapter has every method of the protocol and says how long its loans are."""
        assert isinstance(queue, Queue)
        assert queue.visibility_seconds == self.visibility_seconds
        assert queue.name

    def test_what_is_sent_is_received(self, queue: Queue) -> None:
        """Bodies come back unchanged, with the id that send returned, the count of one and the time of sending."""
        bodies = [b'{"url": "https://example.com/1.jpg"}', "grün & <Bäume>".encode(), b" " * 3000]
        if self.binary_bodies:
            bodies += [bytes(range(256)), b"\xff\xfe\x00"]
        ids = queue.send(bodies)
        received = {message.id: message for message in self.take(queue, len(bodies))}
        assert [received[id_].body for id_ in ids] == bodies
        assert {message.receive_count for message in received.values()} == {1}
        assert all(abs(message.sent_at - time.time()) < 60 for message in received.values())
        assert len({message.receipt for message in received.values()}) == len(bodies)

    def test_nothing_to_send(self, queue: Queue) -> None:
        """Empty batches are allowed and touch nothing."""
        assert queue.send([]) == []
        assert (queue.ack([]), queue.nack([]), queue.extend([], 5)) == ({}, {}, {})
        assert (queue.postpone([]), queue.dead_letter([])) == ({}, {})

    def test_batches_larger_than_the_service_allows(self, queue: Queue) -> None:
        """Any number of messages can be sent, received, extended and acked in one call each."""
        bodies = [b"%d" % number for number in range(33)]
        assert len(set(queue.send(bodies))) == 33
        messages = self.take(queue, 33)
        assert sorted(message.body for message in messages) == sorted(bodies)
        receipts = [message.receipt for message in messages]
        assert queue.extend(receipts, 60) == {}
        assert queue.ack(receipts) == {}
        assert self.total(queue) == 0

    def test_receive_gives_no_more_than_asked(self, queue: Queue) -> None:
        """Receive returns at most max_messages."""
        queue.send([b"x"] * 15)
        assert len(queue.receive(3)) <= 3
        assert len(queue.receive(12)) <= 12

    def test_an_empty_queue_answers_after_the_wait(self, queue: Queue) -> None:
        """An empty queue returns [] after about wait_seconds."""
        start = time.monotonic()
        assert queue.receive(1, wait_seconds=1.0) == []
        assert 0.8 <= time.monotonic() - start < 5.0

    def test_a_wait_ends_when_a_message_comes(self, queue: Queue, make_queue: Callable[[], Queue]) -> None:
        """A long poll returns soon after another worker sends."""
        import threading

        with contextlib.closing(make_queue()) as other:
            timer = threading.Timer(0.3, lambda: other.send([b"x"]))
            timer.start()
            start = time.monotonic()
            messages = queue.receive(1, wait_seconds=10.0)
            timer.join()
        assert [message.body for message in messages] == [b"x"]
        assert time.monotonic() - start < 5.0

    def test_a_lent_message_is_hidden(self, queue: Queue, make_queue: Callable[[], Queue]) -> None:
        """While one worker has a message, another does not get it."""
        # Connected before the loan begins: that may take as long as a loan lasts.
        with contextlib.closing(make_queue()) as other:
            queue.send([b"x"])
            assert len(self.take(queue, 1)) == 1
            assert other.receive(1) == []

    def test_a_loan_runs_out(self, queue: Queue) -> None:
        """A message that is not settled comes again, with another receipt, the same id and a count of two."""
        queue.send([b"x"])
        (first,) = self.take(queue, 1)
        (second,) = self.take(queue, 1)
        assert (second.id, second.body, second.receive_count) == (first.id, b"x", 2)
        assert second.receipt != first.receipt

    def test_an_old_receipt_is_stale(self, queue: Queue) -> None:
        """After the next delivery, the old receipt is STALE for every call, and the new one is good."""
        queue.send([b"x"])
        (first,) = self.take(queue, 1)
        (second,) = self.take(queue, 1)
        assert queue.extend([first.receipt], 60) == {first.receipt: STALE}
        assert queue.nack([first.receipt]) == {first.receipt: STALE}
        assert queue.dead_letter([Burial(first, "late")]) == {first.receipt: STALE}
        assert queue.extend([second.receipt], 60) == {}
        assert queue.ack([second.receipt]) == {}

    def test_an_old_ack_is_stale(self, queue: Queue) -> None:
        """An ack with the old receipt is told to be STALE."""
        queue.send([b"x"])
        (first,) = self.take(queue, 1)
        self.take(queue, 1)
        assert queue.ack([first.receipt]) == {first.receipt: STALE}

    def test_an_ack_is_for_good(self, queue: Queue) -> None:
        """An acked message does not come again when its loan would have run out."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        assert queue.ack([message.receipt]) == {}
        self.wait_out_loan()
        assert queue.receive(1) == []
        assert self.total(queue) == 0

    def test_a_second_ack_does_no_harm(self, queue: Queue) -> None:
        """Acking again succeeds or is STALE, and raises nothing; so does a receipt that never was."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        queue.ack([message.receipt, message.receipt])
        assert set(queue.ack([message.receipt]).values()) <= {STALE}

    def test_good_and_bad_receipts_in_one_call(self, queue: Queue) -> None:
        """A batch carries out what it can and names the rest."""
        queue.send([b"x", b"y"])
        one, two = self.take(queue, 2)
        assert queue.ack([one.receipt]) == {}
        assert set(queue.nack([two.receipt, "no-such-receipt"], delay_seconds=60)) == {"no-such-receipt"}

    def test_a_nack_offers_again_at_once(self, queue: Queue, make_queue: Callable[[], Queue]) -> None:
        """A nacked message can be received at once by anybody, counted once more; the receipt is used up."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        assert queue.extend([message.receipt], 60) == {}
        assert queue.nack([message.receipt]) == {}
        assert queue.ack([message.receipt]) == {message.receipt: STALE}
        with contextlib.closing(make_queue()) as other:
            (again,) = self.take(other, 1)
        assert (again.id, again.receive_count) == (message.id, 2)

    def test_a_nack_with_delay_holds_back(self, queue: Queue) -> None:
        """A message nacked with a delay is hidden for the delay, counted as delayed or in flight, then comes again."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        start = time.monotonic()
        assert queue.nack([message.receipt], delay_seconds=1.0) == {}
        assert queue.receive(1) == []
        state = queue.statistics()
        assert state.delayed + state.in_flight == 1
        (again,) = self.take(queue, 1)
        assert time.monotonic() - start > 0.8
        assert again.receive_count == 2

    def test_an_extended_loan_lasts(self, queue: Queue) -> None:
        """An extended message stays hidden beyond the visibility timeout and can then be acked."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        assert queue.extend([message.receipt], 30.0) == {}
        self.wait_out_loan()
        assert queue.receive(1) == []
        assert queue.ack([message.receipt]) == {}
        assert self.total(queue) == 0

    def test_a_delayed_send_waits(self, queue: Queue) -> None:
        """A message sent with a delay cannot be received before and is received after."""
        start = time.monotonic()
        queue.send([b"x"], delay_seconds=1.0)
        assert queue.receive(1) == []
        assert queue.statistics().delayed == 1
        (message,) = self.take(queue, 1)
        assert time.monotonic() - start > 0.8
        assert message.receive_count == 1

    def test_statistics_count_every_state(self, queue: Queue) -> None:
        """Visible, in flight, delayed and dead are counted apart."""
        queue.send([b"x"] * 5)
        queue.send([b"later"], delay_seconds=60)
        dying, lent = self.take(queue, 2)
        queue.extend([dying.receipt, lent.receipt], 60)
        assert queue.dead_letter([Burial(dying, "test")]) == {}
        state = queue.statistics()
        assert (state.visible, state.in_flight, state.delayed, state.dead) == (3, 1, 1, 1)
        assert state.oldest_age_seconds is None or 0 <= state.oldest_age_seconds < 60

    def test_a_dead_letter_keeps_its_reason(self, queue: Queue) -> None:
        """A dead letter has id, body, reason, count and time, and is no longer in the queue."""
        queue.send([b"body"])
        (message,) = self.take(queue, 1)
        assert queue.dead_letter([Burial(message, "decode: item 7: not an image — größer als erlaubt")]) == {}
        (letter,) = cast("list[DeadLetter]", queue.peek(5, dead=True))
        assert (letter.id, letter.body, letter.receive_count) == (message.id, b"body", 1)
        assert letter.reason == "decode: item 7: not an image — größer als erlaubt"
        assert abs(letter.died_at - time.time()) < 60
        assert queue.dead_letter([Burial(message, "again")]) == {message.receipt: STALE}
        assert (self.total(queue), queue.statistics().dead) == (0, 1)

    def test_a_dead_letter_keeps_a_result(self, queue: Queue) -> None:
        """What is kept with a dead letter is shown, comes back with a redrive, and not when it is to be worked on again."""
        kept = '{"result": "größer \\u0000 & <b>"}'.encode()
        queue.send([b"x", b"y"])
        messages = self.take(queue, 2)
        queue.extend([message.receipt for message in messages], 60)
        assert queue.dead_letter([Burial(message, "nobody takes it", kept) for message in messages]) == {}
        letters = cast("list[DeadLetter]", queue.peek(5, dead=True))
        assert [letter.kept for letter in letters] == [kept, kept]
        assert queue.redrive(1) == 1
        (with_it,) = self.take(queue, 1)
        queue.extend([with_it.receipt], 60)
        assert queue.redrive(rework=True) == 1
        (without,) = self.take(queue, 1)
        assert (with_it.kept, without.kept) == (kept, b"")
        assert queue.dead_letter([Burial(with_it, "once more")]) == {}
        (letter,) = cast("list[DeadLetter]", queue.peek(5, dead=True))
        assert letter.kept == b""  # what is kept is what the last one gave

    def test_what_is_postponed_is_as_new(self, queue: Queue) -> None:
        """A postponed message comes after its delay with its id, body and what is kept, counted once; others stay lent."""
        queue.send([b"x", b"y"])
        one, other = self.take(queue, 2)
        queue.extend([one.receipt, other.receipt], 60)
        start = time.monotonic()
        assert queue.postpone([Postponed(one, 1.0, b'{"result": 1}')]) == {}
        assert queue.receive(1) == []
        (again,) = self.take(queue, 1)
        assert time.monotonic() - start > 0.8
        assert (again.id, again.body, again.receive_count, again.kept) == (one.id, one.body, 1, b'{"result": 1}')
        assert queue.ack([again.receipt]) == {}
        assert queue.ack([other.receipt]) == {}
        assert self.wait_until(lambda: self.total(queue) == 0)

    def test_what_is_postponed_again_keeps_the_latest(self, queue: Queue) -> None:
        """Postponed as often as one likes, a message counts one receive and keeps what it was given last."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        for number in range(3):
            assert queue.postpone([Postponed(message, 0.0, f'{{"result": {number}}}'.encode())]) == {}
            (message,) = self.take(queue, 1)
            assert (message.receive_count, message.kept) == (1, f'{{"result": {number}}}'.encode())
        assert queue.ack([message.receipt]) == {}

    def test_a_stale_delivery_cannot_be_postponed(self, queue: Queue) -> None:
        """Who lost a message to another can neither postpone it nor use its old receipt when the other postponed it."""
        queue.send([b"x"])
        (first,) = self.take(queue, 1)
        (second,) = self.take(queue, 1)
        assert queue.postpone([Postponed(first, 0.0, b"late")]) == {first.receipt: STALE}
        assert queue.postpone([Postponed(second, 0.0, b"")]) == {}
        (third,) = self.take(queue, 1)
        assert queue.extend([first.receipt, second.receipt], 60) == {first.receipt: STALE, second.receipt: STALE}
        assert queue.ack([third.receipt]) == {}

    def test_a_successor_settles_what_a_dead_process_had(self, make_queue: Callable[[], Queue]) -> None:
        """Receipts that one process received can be acked and nacked by another that was told of them."""
        with contextlib.closing(make_queue()) as dead, contextlib.closing(make_queue()) as successor:
            dead.send([b"x", b"y"])
            done, open_ = self.take(dead, 2)
            receipts = [done.receipt, open_.receipt]
            dead.extend(receipts, 60)
            if isinstance(successor, AdoptsLoans):
                successor.adopt(dict.fromkeys(receipts, time.monotonic()))
            assert successor.ack([done.receipt]) == {}
            assert successor.nack([open_.receipt]) == {}
            (again,) = self.take(successor, 1)
            assert again.body == open_.body
            assert successor.ack([again.receipt]) == {}
            assert self.wait_until(lambda: self.total(successor) == 0)

    def test_redrive_starts_afresh(self, queue: Queue) -> None:
        """A redriven message has its old id and body and a count of one; max_messages is kept."""
        ids = queue.send([b"a", b"b", b"c"])
        messages = self.take(queue, 3)
        queue.extend([message.receipt for message in messages], 60)
        assert queue.dead_letter([Burial(message, "test") for message in messages]) == {}
        assert queue.redrive(2) == 2
        assert queue.statistics().dead == 1
        again = self.take(queue, 2)
        queue.extend([message.receipt for message in again], 60)
        assert queue.redrive() == 1
        again += self.take(queue, 1)
        assert {message.id for message in again} == set(ids)
        assert {message.body for message in again} == {b"a", b"b", b"c"}
        assert {message.receive_count for message in again} == {1}
        assert queue.redrive() == 0

    def test_peek_leaves_messages(self, queue: Queue) -> None:
        """Peeking returns bodies and leaves the messages to be received."""
        queue.send([b"a", b"b"])
        assert {message.body for message in queue.peek(10)} == {b"a", b"b"}
        assert len(queue.peek(1)) == 1
        assert len(self.take(queue, 2)) == 2

    def test_purge_removes_one_or_the_other(self, queue: Queue) -> None:
        """Purge removes the messages and leaves the dead letters; purge(dead=True) removes those."""
        queue.send([b"x"] * 3)
        (message,) = self.take(queue, 1)
        queue.dead_letter([Burial(message, "test")])
        queue.purge()
        assert self.wait_until(lambda: self.total(queue) == 0)
        assert queue.statistics().dead == 1
        queue.purge(dead=True)
        assert self.wait_until(lambda: queue.statistics().dead == 0)

    def test_what_is_malformed_ends_alone(self, queue: Queue, put_malformed: Sequence[Callable[[], object]]) -> None:
        """What cannot be read comes as a malformed message with what was there; the good ones beside it come as they are."""
        for put in put_malformed:
            put()
            queue.send([b"good"])
        messages = self.take(queue, 2 * len(put_malformed))
        good = [message for message in messages if not message.malformed]
        malformed = [message for message in messages if message.malformed]
        assert [message.body for message in good] == [b"good"] * len(put_malformed)
        assert all(message.malformed.startswith("message.malformed: ") for message in malformed)
        assert all(message.id for message in malformed)
        assert queue.ack([message.receipt for message in good]) == {}
        queue.extend([message.receipt for message in malformed], 60)
        assert queue.dead_letter([Burial(message, message.malformed) for message in malformed]) == {}
        assert self.wait_until(lambda: self.total(queue) == 0)

    def test_letters_of_what_is_malformed(self, queue: Queue, put_malformed: Sequence[Callable[[], object]]) -> None:
        """The dead letter of what cannot be read can be looked at, has what was there, and can be redriven."""
        for put in put_malformed:
            put()
        assert len(queue.peek(100)) <= len(put_malformed)  # and raises nothing
        assert queue.statistics().dead == 0
        messages = self.take(queue, len(put_malformed))
        queue.extend([message.receipt for message in messages], 60)
        assert queue.dead_letter([Burial(message, "cannot be read") for message in messages]) == {}
        letters = cast("list[DeadLetter]", queue.peek(100, dead=True))
        assert sorted(letter.body for letter in letters) == sorted(message.body for message in messages)
        assert {letter.reason for letter in letters} == {"cannot be read"}
        assert queue.redrive() == len(put_malformed)
        assert len(self.take(queue, len(put_malformed))) == len(put_malformed)

    def test_letters_that_cannot_be_written_hold_up_nothing(self, queue: Queue) -> None:
        """Where dead letters are refused, good jobs are acked, the bad one stays lent, and its letter is written later."""
        faulty = FaultyQueue(queue)
        faulty.refuses.add("dead_letter")
        queue.send([b"no job"] + [b'{"url": "https://example.com"}'] * 3)
        with self.settling(faulty, 4) as source:
            assert self.tend_until(source, lambda: source.num_in_flight == 1)
            assert self.tend_until(source, lambda: faulty.calls["dead_letter"] > 3)
            assert queue.receive(1) == []
            faulty.refuses.clear()
            assert self.tend_until(source, lambda: source.num_in_flight == 0)
        assert self.wait_until(lambda: (self.total(queue), queue.statistics().dead) == (0, 1))

    def test_acks_that_fail_for_long_are_sent_in_the_end(self, queue: Queue) -> None:
        """Acks that fail for longer than a loan lasts are tried on; nobody else gets the messages, none is left behind."""
        faulty = FaultyQueue(queue)
        faulty.fails["ack"] = "InternalError: later"
        queue.send([b'{"url": "https://example.com"}'] * 12)
        with self.settling(faulty, 12) as source:
            over_at = time.monotonic() + 2 * self.visibility_seconds
            assert self.tend_until(source, lambda: time.monotonic() > over_at)
            assert queue.receive(12) == []
            faulty.fails.clear()
            assert self.tend_until(source, lambda: source.num_in_flight == 0)
        assert self.wait_until(lambda: (self.total(queue), queue.statistics().dead) == (0, 0))

    @contextlib.contextmanager
    def settling(self, faulty: FaultyQueue, count: int) -> Iterator[QueueSource]:
        """Open a source, and settle so many jobs: bad ones by their verdicts, the others as delivered."""
        source = QueueSource(cast("Queue", faulty))
        source.open(SourcePlan())
        with contextlib.closing(source):
            give_up_at = time.monotonic() + PATIENCE_SECONDS
            while count and time.monotonic() < give_up_at:
                for job in source.receive(count, self.wait_seconds) or []:
                    job.settle(job.verdict or DELIVERED)
                    count -= 1
            assert count == 0
            yield source

    def tend_until(self, source: QueueSource, condition: Callable[[], bool]) -> bool:
        """Tend the source's loans, as a run does, until the condition comes true."""

        def tended() -> bool:
            source.tend()
            return condition()

        return self.wait_until(tended)

    def test_two_workers_share(self, queue: Queue, make_queue: Callable[[], Queue]) -> None:
        """Two threads on two connections receive every message once while nothing goes wrong."""
        from concurrent.futures import ThreadPoolExecutor

        ids = queue.send([b"x"] * 40)
        done: list[str] = []
        give_up_at = time.monotonic() + 30

        def work() -> None:
            with contextlib.closing(make_queue()) as mine:
                # An empty answer is no end: a service may give none although there are some.
                while len(done) < len(ids) and time.monotonic() < give_up_at:
                    messages = mine.receive(7)
                    assert mine.ack([message.receipt for message in messages]) == {}
                    done.extend(message.id for message in messages)

        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(work) for _ in range(2)]:
                future.result()
        assert sorted(done) == sorted(ids)

    def test_closing_twice_does_no_harm(self, queue: Queue) -> None:
        """Close may be repeated."""
        queue.close()
        queue.close()

    def total(self, queue: Queue) -> int:
        """Return how many messages the queue has in any state but dead."""
        state = queue.statistics()
        return state.visible + state.in_flight + state.delayed
