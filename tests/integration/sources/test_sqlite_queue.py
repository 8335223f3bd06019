"""The SQLite queue on a real file."""

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.errors import QueueRefused, SourceError
from headrace.base.protocols import Queue
from headrace.base.records import Burial
from headrace.sources.addresses import open_queue
from headrace.testing.conformance import QueueConformance

pytestmark = pytest.mark.real_clock


class TestSqliteQueue(QueueConformance):
    @pytest.fixture
    def make_queue(self, tmp_path: Path) -> Callable[[], Queue]:
        """Open the same file each time."""
        return lambda: open_queue(f"sqlite:///{tmp_path}/jobs.db", visibility_seconds=self.visibility_seconds)

    @pytest.fixture
    def put_malformed(self, tmp_path: Path, queue: Queue) -> Iterator[Sequence[Callable[[], object]]]:
        """Add rows by hand whose columns hold what they should not."""
        insert = (
            "INSERT INTO messages (queue, visible_at, lent, receive_count, sent_at, id, body)"
            " VALUES (1, 0, 0, 0, ?, CAST(? AS TEXT), ?)"
        )
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=10)) as connection:
            rows = [("soon", b"a", b"x"), (1.0, b"\xff", b"x"), (1.0, b"\xff\xfe", b""), (b"\xff", b"a", "text")]
            yield [functools.partial(connection.execute, insert, row) for row in rows]

    def test_a_body_that_is_text(self, tmp_path: Path, queue: Queue) -> None:
        """A row that was inserted by hand, with text for its body, is a message like others."""
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
            connection.execute(
                "INSERT INTO messages (queue, visible_at, lent, receive_count, sent_at, id, body)"
                " VALUES (1, 0, 0, 0, 1, 'a', 'x')"
            )
        (message,) = self.take(queue, 1)
        assert (message.id, message.body, message.malformed) == ("a", b"x", "")

    def test_letters_that_have_no_place(self, tmp_path: Path, queue: Queue) -> None:
        """Where the table of the dead letters is gone, they are refused, and their messages are still there."""
        queue.send([b"x"])
        (message,) = self.take(queue, 1)
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
            connection.execute("ALTER TABLE dead_letters RENAME TO elsewhere")
            with pytest.raises(QueueRefused, match="no such table"):
                queue.dead_letter([Burial(message, "test")])
            connection.execute("ALTER TABLE elsewhere RENAME TO dead_letters")
        assert queue.dead_letter([Burial(message, "test")]) == {}


def test_a_damaged_file_ends_the_run(tmp_path: Path) -> None:
    """A queue file whose pages were overwritten is an error that names it, not an outage to wait for."""
    path = tmp_path / "jobs.db"
    queue = open_queue(f"sqlite:///{path}")
    queue.send([b'{"url": "https://example.com"}'] * 2000)
    queue.close()
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xab" * (len(content) - 8192)
    path.write_bytes(content)
    pipeline = hr.Pipeline(
        hr.queue(f"sqlite:///{path}", drain=True), stages=[hr.stage("work", len)], delivery=hr.collect()
    )
    with pytest.raises(SourceError, match=r"jobs\.db is (damaged|not a queue file)"):
        hr.run(pipeline)
