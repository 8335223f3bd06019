"""The SQLite queue's time goes on whatever is done to the wall clock."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.sources.sqlite_queue import SqliteQueue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[SqliteQueue]:
    """Give a queue whose loans last half a minute."""
    queue = SqliteQueue(tmp_path / "jobs.db", visibility_seconds=30)
    yield queue
    queue.close()


@pytest.mark.parametrize("hours", [-1, 1])
def test_loans_survive_a_jump_of_the_wall_clock(
    queue: SqliteQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """After a jump of an hour, what is lent stays lent, and what waits can be received, also by a process begun since."""
    queue.send([b"lent", b"waiting"])
    (message,) = queue.receive(1)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + hours * 3600)
    other = SqliteQueue(tmp_path / "jobs.db")
    assert [found.body for found in other.receive(10)] == [b"waiting"]
    assert other.statistics().in_flight == 2
    assert queue.ack([message.receipt]) == {}
    other.close()


def test_time_does_not_begin_before_the_last_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that boots with its clock at 1970, what was sent before can be received."""
    queue = SqliteQueue(tmp_path / "jobs.db")
    queue.send([b"before the boot"])
    queue.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute("DELETE FROM boots")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    queue = SqliteQueue(tmp_path / "jobs.db")
    assert [message.body for message in queue.receive(1)] == [b"before the boot"]
    queue.close()


def test_unix_time_is_told(queue: SqliteQueue) -> None:
    """What the queue says of a message's age is Unix time, to the second."""
    before = time.time()
    queue.send([b"x"])
    (message,) = queue.receive(1)
    assert before - 1 < message.sent_at < time.time() + 1
