"""The Redis queue on a real redis-server."""

import contextlib
import functools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

import headrace as hr
from headrace.base.errors import QueueRefused, QueueUnavailable, SourceError
from headrace.base.protocols import Queue
from headrace.base.records import Burial, DeadLetter, Message, Postponed
from headrace.sources.addresses import open_queue
from headrace.testing.conformance import QueueConformance

pytestmark = pytest.mark.real_clock


class TestRedisQueue(QueueConformance):
    @pytest.fixture
    def address(self, redis_server: str) -> str:
        """Name a queue that no other test uses."""
        return f"{redis_server}?queue={uuid.uuid4().hex}"

    @pytest.fixture
    def make_queue(self, address: str) -> Callable[[], Queue]:
        """Open the same queue each time."""
        return lambda: open_queue(address, visibility_seconds=self.visibility_seconds)

    @pytest.fixture
    def put_malformed(self, address: str) -> Iterator[Sequence[Callable[[], object]]]:
        """Add entries to the stream whose field `id` holds what it should not."""
        import redis

        stream = "headrace:{" + address.partition("=")[2] + "}"
        entries: list[dict[Any, Any]] = [
            {"id": b"\xff", "sent": "1", "body": "x"},
            {"id": b"\xff\xfe", "body": b"\xff"},
        ]
        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            yield [functools.partial(server.xadd, stream, entry) for entry in entries]

    @pytest.fixture
    def add(self, address: str) -> Iterator[Callable[[dict[Any, Any]], str]]:
        """Add an entry to the stream as another producer does, and return the id that Redis gave it."""
        import redis

        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0], decode_responses=True)) as server:
            yield lambda fields: str(server.xadd("headrace:{" + address.partition("=")[2] + "}", fields))

    @pytest.mark.parametrize(
        ("fields", "body"),
        [
            ({"body": b"x \xff"}, b"x \xff"),
            ({"body": "x", "sent": "2026-11-22T18:00:00Z"}, b"x"),
            ({"body": "x", "sent": ""}, b"x"),
            ({"body": "x", "sent": "9" * 400}, b"x"),
            ({"body": "x", "sent": "1763830000"}, b"x"),
            ({"body": "x", "id": ""}, b"x"),
            ({"body": "x", "count": "3", "reason": "new"}, b"x"),
            ({"payload": '{"asset": "a"}'}, b'{"asset": "a"}'),
            ({"asset": "a", "count": "3"}, b'{"asset":"a","count":"3"}'),
            (
                {"asset": 'ä"\n', "kept": "yes", "reason": "new"},
                b'{"asset":"\xc3\xa4\\"\\n","kept":"yes","reason":"new"}',
            ),
        ],
        ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
    )
    def test_an_entry_of_another_producer(
        self, queue: Queue, add: Callable[[dict[Any, Any]], str], fields: dict[Any, Any], body: bytes
    ) -> None:
        """It needs none of our fields, and keeps id, time and body when it is tried again, postponed, dead and redriven."""
        entry = add(fields)
        (peeked,) = cast("list[Message]", queue.peek(1))
        (first,) = self.take(queue, 1)
        assert (first.id, first.body, first.malformed, first.kept) == (entry, body, "", b"")
        assert first.sent_at == int(entry.partition("-")[0]) / 1000
        assert (peeked.id, peeked.body, peeked.sent_at) == (first.id, first.body, first.sent_at)
        queue.nack([first.receipt])
        (second,) = self.take(queue, 1)
        assert second.receive_count == 2
        queue.postpone([Postponed(second, 0.0, b"a result")])
        (third,) = self.take(queue, 1)
        assert third.kept == b"a result"
        queue.dead_letter([Burial(third, "test")])
        (letter,) = cast("list[DeadLetter]", queue.peek(1, dead=True))
        assert (letter.id, letter.body, letter.reason, letter.receive_count) == (entry, body, "test", 1)
        queue.redrive()
        (last,) = self.take(queue, 1)
        assert {(one.id, one.body, one.sent_at) for one in (second, third, last)} == {(entry, body, first.sent_at)}

    def test_an_id_of_the_producer(self, queue: Queue, add: Callable[[dict[Any, Any]], str]) -> None:
        """Whoever adds the entry may say its id and, in milliseconds, when it was sent."""
        add({"body": "x", "id": "order-7", "sent": "1700000000123"})
        (message,) = self.take(queue, 1)
        assert (message.id, message.sent_at) == ("order-7", 1700000000.123)

    def test_the_reason_names_the_field(self, queue: Queue, add: Callable[[dict[Any, Any]], str]) -> None:
        """What cannot be read says which field of it, what was in it and what to do."""
        add({"id": b"\xff", "body": "x"})
        (message,) = self.take(queue, 1)
        assert "its field `id` is not UTF-8: b'\\xff'; leave it out" in message.malformed

    def test_what_waits_and_is_no_message(self, queue: Queue, address: str) -> None:
        """What a stranger put among the messages that wait for their time comes as it is, and holds up nothing."""
        import redis

        key = "headrace:{" + address.partition("=")[2] + "}:delayed"
        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.zadd(key, {b"\xc1 no msgpack": 0, b"\x07": 0})
        queue.send([b"good"])
        assert sorted(message.body for message in self.take(queue, 3)) == [b"\x07", b"good", b"\xc1 no msgpack"]

    def test_more_fields_than_a_script_passes_on(self, queue: Queue, address: str) -> None:
        """An entry of thousands of fields is dead-lettered and redriven like others."""
        import redis

        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.xadd("headrace:{" + address.partition("=")[2] + "}", {f"f{number}": "x" for number in range(9000)})
        (message,) = self.take(queue, 1)
        queue.dead_letter([Burial(message, "test")])
        (letter,) = cast("list[DeadLetter]", queue.peek(1, dead=True))
        assert b"f8999" in letter.body
        assert queue.redrive() == 1
        assert [again.body for again in self.take(queue, 1)] == [message.body]

    def test_a_letter_with_more_fields_than_a_script_passes_on(self, queue: Queue, address: str) -> None:
        """A letter of thousands of fields, by somebody else, is redriven with its fields as one."""
        import redis

        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            key = "headrace:{" + address.partition("=")[2] + "}:dead"
            server.xadd(key, {f"f{number}": "x" for number in range(9000)})
        assert queue.redrive() == 1
        (message,) = self.take(queue, 1)
        assert b"f8999" in message.body

    def test_letters_that_have_no_place(self, queue: Queue, address: str) -> None:
        """Where the key of the dead letters holds something else, they are refused, and their messages are still there."""
        import redis

        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        key = "headrace:{" + address.partition("=")[2] + "}:dead"
        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.set(key, "taken")
            with pytest.raises(QueueRefused, match="dead letters cannot be written"):
                queue.dead_letter([Burial(message, "test")])
            server.delete(key)
        assert queue.dead_letter([Burial(message, "test")]) == {}

    def test_what_nobody_lent_does_no_harm(self, queue: Queue, address: str) -> None:
        """Receipts that a stranger wrote among ours are dropped, and messages come and go."""
        import redis

        stream = "headrace:{" + address.partition("=")[2] + "}"
        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.zadd(f"{stream}:lent", {"no receipt": 0, "what/1": 0, "1-1/1": 0})
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        assert queue.ack([message.receipt]) == {}
        assert self.wait_until(lambda: self.total(queue) == 0)

    def test_a_foreign_letter_is_shown(self, queue: Queue, address: str) -> None:
        """A dead letter that somebody else wrote is shown with what it has."""
        import redis

        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.xadd("headrace:{" + address.partition("=")[2] + "}:dead", {"why": "by hand", "count": "few"})
        (letter,) = cast("list[DeadLetter]", queue.peek(5, dead=True))
        assert (letter.body, letter.reason, letter.receive_count) == (
            b'{"why": "by hand"}',
            "no reason given",
            0,
        )

    def test_a_deleted_stream_is_made_again(self, queue: Queue, address: str) -> None:
        """After somebody deleted the keys, the queue works on, empty."""
        import redis

        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.delete("headrace:{" + address.partition("=")[2] + "}")
        assert queue.receive(1) == []
        queue.send([b"x"])
        assert len(queue.receive(1)) == 1

    def test_an_entry_read_by_hand_comes_back(
        self, queue: Queue, make_queue: Callable[[], Queue], address: str
    ) -> None:
        """What somebody read past the adapter and left is offered again when a worker opens the queue."""
        import redis

        queue.send([b"x"])
        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.xreadgroup("headrace", "somebody", {"headrace:{" + address.partition("=")[2] + "}": ">"})
        self.wait_out_loan()
        with contextlib.closing(make_queue()) as later:
            assert [message.body for message in self.take(later, 1)] == [b"x"]


def test_a_key_of_something_else_is_named(redis_server: str) -> None:
    """A key that holds no stream is an error that names it."""
    import redis

    with contextlib.closing(redis.Redis.from_url(redis_server)) as server:
        server.set("headrace:{taken}", "x")
    with pytest.raises(SourceError, match="taken"):
        open_queue(f"{redis_server}?queue=taken")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    """A refused connection is QueueUnavailable, and the password is nowhere in the message."""
    with pytest.raises(QueueUnavailable) as raised:
        open_queue("redis://user:geheim@127.0.0.1:1/0")
    assert "geheim" not in str(raised.value)
    assert "127.0.0.1:1" in str(raised.value)


def test_jobs_of_a_producer_that_knows_nothing_of_headrace(redis_server: str) -> None:
    """Its entries reach `parse`, their task and attributes come along, and one that always fails ends with its body and id."""
    import redis

    address = f"{redis_server}?queue={uuid.uuid4().hex}"
    seen: list[tuple[str, str]] = []

    class Shops(hr.Module):
        """Answers with the job's attribute; one of them fails."""

        input = hr.BytesInput()

        def process(self, batch: list[Any]) -> list[Any]:
            jobs = hr.current_jobs()
            seen.extend((job.id, job.task) for job in jobs)
            if any(job.attributes["shop"] == "closed" for job in jobs):
                raise ValueError("closed")
            return [job.attributes["shop"] for job in jobs]

    def parse(body: bytes) -> dict[str, Any]:
        order = json.loads(body)
        return {"data": b"x", "task": "shops", "attributes": {"shop": order["shop"]}}

    with contextlib.closing(redis.Redis.from_url(redis_server, decode_responses=True)) as server:
        key = "headrace:{" + address.partition("=")[2] + "}"
        bodies = ['{"shop": "a"}', '{"shop": "closed"}']
        good, bad = (str(server.xadd(key, {"body": body})) for body in bodies)
    delivery, plan = hr.collect(), hr.Plan().with_settings(["shops.process.batch=1"])
    source = hr.queue(address, drain=True, max_receives=2, parse=parse)
    hr.run(hr.Pipeline(source, modules={"shops": Shops()}, delivery=delivery), plan)
    assert delivery.results == [(good, "a")]
    assert seen.count((bad, "shops")) == 2
    with contextlib.closing(open_queue(address)) as queue:
        (letter,) = cast("list[DeadLetter]", queue.peek(5, dead=True))
        assert (letter.id, letter.body, letter.receive_count) == (bad, bodies[1].encode(), 2)
        assert queue.redrive() == 1
        assert [(message.id, message.body) for message in queue.receive(1)] == [(bad, bodies[1].encode())]
