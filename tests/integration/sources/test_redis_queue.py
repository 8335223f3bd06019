"""The Redis queue on a real redis-server."""

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from headrace.base.errors import QueueRefused, QueueUnavailable, SourceError
from headrace.base.protocols import Queue
from headrace.base.records import Burial, DeadLetter
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
        """Add entries to the stream, and to what waits to enter it, that no sender of ours would."""
        import redis

        stream = "headrace:{" + address.partition("=")[2] + "}"
        good = {"id": "a", "sent": "1", "body": "x"}
        entries: list[dict[Any, Any]] = [
            {"foo": b"bar \xff"},
            good | {"id": b"\xff"},
            good | {"sent": "soon"},
            good | {"sent": ""},
            {"id": "a", "sent": "1"},
        ]
        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            yield [
                *(functools.partial(server.xadd, stream, entry) for entry in entries),
                lambda: server.zadd(f"{stream}:delayed", {b"\xc1 no msgpack": 0}),
                lambda: server.zadd(f"{stream}:delayed", {b"\x07": 0}),
            ]

    def test_more_fields_than_a_script_passes_on(self, queue: Queue, address: str) -> None:
        """An entry of thousands of fields is dead-lettered and redriven like others, its fields as one."""
        import redis

        with contextlib.closing(redis.Redis.from_url(address.partition("?")[0])) as server:
            server.xadd("headrace:{" + address.partition("=")[2] + "}", {f"f{number}": "x" for number in range(9000)})
        (message,) = self.take(queue, 1)
        assert message.malformed
        queue.dead_letter([Burial(message, "test")])
        (letter,) = cast("list[DeadLetter]", queue.peek(1, dead=True))
        assert b"f8999" in letter.body
        assert queue.redrive() == 1
        assert len(self.take(queue, 1)) == 1

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
