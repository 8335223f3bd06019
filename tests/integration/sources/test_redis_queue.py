"""The Redis queue on a real redis-server."""

import contextlib
import uuid
from collections.abc import Callable

import pytest

from headrace.base.errors import QueueUnavailable, SourceError
from headrace.base.protocols import Queue
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
