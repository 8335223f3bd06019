"""Heartbeats, and what is told of jobs that kill, at a real Redis server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.policies.blame import Record
from headrace.monitor.fleet.place import PlaceUnavailable, RedisPlace, open_place
from headrace.monitor.fleet.suspects import SharedSuspects


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Start a server and return its address, as a queue's with parameters."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [program, "--port", str(port), "--save", "", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0?queue=jobs"
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.mark.full
def test_heartbeats_are_kept_and_replaced(address: str) -> None:
    """The newest of each worker, sorted; another client of the same server sees them, and other keys are left alone."""
    one = RedisPlace(address)
    one.put("b", b"old")
    one.put("a", b"first")
    one.put("b", b"new")
    import redis

    with redis.Redis.from_url(address.partition("?")[0]) as client:
        client.set("headrace:other", b"x")
        assert 0 < int(str(client.ttl("headrace:fleet:a"))) <= 86_400
        client.rpush("headrace:fleet:list", "x")
        client.set("headrace:fleet:text", "x")
        others = [(left.name, left.content) for left in RedisPlace(address).read_all()]
        assert others == [
            ("a", b"first"),
            ("b", b"new"),
            ("list", b""),
            ("text", b""),
        ]  # the workers are shown all the same
        client.delete("headrace:fleet:list", "headrace:fleet:text")
        client.pexpire("headrace:fleet:a", 86_400_000 - 100_000)  # as if it had been left 100 s ago
    old, new = RedisPlace(address).read_all()
    assert (old.name, old.content, new.name, new.content) == ("a", b"first", "b", b"new")
    assert old.age_seconds >= 100 > new.age_seconds >= 0
    assert abs(RedisPlace(address).now() - time.time()) < 60


@pytest.mark.full
def test_jobs_that_kill_are_told_there_too(address: str) -> None:
    """Beside heartbeats, which are other keys; they go after a day by themselves."""
    first, second = (SharedSuspects(open_place(address, "suspects"), name) for name in ("first", "second"))
    RedisPlace(address).put("first", b"beat")
    record = Record(deaths=2, crashes=2, blamed=True, cause="SIGKILL")
    assert first("jobs", {"poison": record}) == {}
    assert second("jobs", {}) == {"poison": record}
    assert second("other", {}) == {}
    assert [(left.name, left.content) for left in RedisPlace(address).read_all()] == [("first", b"beat")]
    (left,) = open_place(address, "suspects").read_all()
    assert left.name == "first"
    import redis

    with redis.Redis.from_url(address.partition("?")[0]) as client:
        (key,) = client.keys("headrace:suspects:*")
        assert 0 < int(str(client.ttl(key))) <= 86_400


@pytest.mark.full
def test_a_server_whose_memory_is_full_is_read(address: str) -> None:
    """All workers are shown and all suspects known; what cannot be left is said."""
    import redis

    place, told = RedisPlace(address), SharedSuspects(open_place(address, "suspects"), "first")
    place.put("a", b"beat")
    record = Record(deaths=2, crashes=2, blamed=True, cause="SIGKILL")
    told("jobs", {"poison": record})
    with redis.Redis.from_url(address.partition("?")[0]) as client:
        client.config_set("maxmemory", "1mb")
    with pytest.raises(PlaceUnavailable, match=r"redis://127.0.0.1:\d+/0: OutOfMemoryError"):
        place.put("b", b"beat")
    (left,) = RedisPlace(address).read_all()
    assert (left.name, left.content) == ("a", b"beat")
    second = SharedSuspects(open_place(address, "suspects"), "second")
    assert second("jobs", {"other": record}) == {"poison": record}
