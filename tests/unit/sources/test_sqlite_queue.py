"""What the SQLite queue promises beyond the suite in tests/integration: files, processes, crashes."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.errors import QueueUnavailable, SourceError
from headrace.base.records import Burial
from headrace.sources import sqlite_queue
from headrace.sources.sqlite_queue import APPLICATION_ID, SqliteQueue
from headrace.testing import FakeClock

_WORKING = """
import sys
from headrace.sources.sqlite_queue import SqliteQueue
queue = SqliteQueue(sys.argv[1])
while messages := queue.receive(5):
    assert queue.ack([message.receipt for message in messages]) == {}
    print(*(message.id for message in messages))
queue.close()
"""


def _work_in_processes(path: Path, count: int) -> list[str]:
    """Return the ids that so many processes received, each until nothing was left."""
    # Scripts rather than a process pool: under --import-mode=importlib, children cannot import this file.
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKING, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count
    return " ".join(outputs).split()


def test_processes_share_a_file(tmp_path: Path) -> None:
    """Three processes that receive side by side get every message, and none twice."""
    path = tmp_path / "jobs.db"
    queue = SqliteQueue(path)
    ids = queue.send([b"x"] * 300)
    done = _work_in_processes(path, 3)
    assert sorted(done) == sorted(ids)
    assert queue.statistics().visible == 0
    queue.close()


def test_processes_may_make_the_file_at_once(tmp_path: Path) -> None:
    """Several processes that open a file that does not exist yet make one queue."""
    assert _work_in_processes(tmp_path / "jobs.db", 5) == []


_CRASHING = """
import os, signal, sys
from headrace.sources.sqlite_queue import SqliteQueue
queue = SqliteQueue(sys.argv[1], visibility_seconds=60)
with queue._transaction() as connection:
    connection.execute("UPDATE messages SET lent = 1, visible_at = visible_at + 60")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_in_a_receive_leaves_the_queue_usable(tmp_path: Path) -> None:
    """A transaction that SIGKILL cut off is undone: the messages can be received at once."""
    path = tmp_path / "jobs.db"
    queue = SqliteQueue(path)
    ids = queue.send([b"x"] * 10)
    ended = subprocess.run([sys.executable, "-c", _CRASHING, str(path)], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert sorted(message.id for message in queue.receive(10)) == sorted(ids)
    queue.close()


_RECEIVING = """
import os, signal, sys
from headrace.sources.sqlite_queue import SqliteQueue
SqliteQueue(sys.argv[1], visibility_seconds=0.05).receive(10)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_with_messages_loses_none(tmp_path: Path) -> None:
    """What a killed process had received comes back after its visibility timeout, counted."""
    path = tmp_path / "jobs.db"
    queue = SqliteQueue(path)
    ids = queue.send([b"x"] * 10)
    subprocess.run([sys.executable, "-c", _RECEIVING, str(path)], env=os.environ, check=False)
    again = queue.receive(10, wait_seconds=10)
    assert sorted(message.id for message in again) == sorted(ids)
    assert {message.receive_count for message in again} == {2}
    queue.close()


def test_messages_come_in_the_order_sent(tmp_path: Path) -> None:
    """Within one file, first come is first served, across batches."""
    queue = SqliteQueue(tmp_path / "jobs.db")
    ids = [id_ for _ in range(5) for id_ in queue.send([b"x"] * 3)]
    assert [message.id for _ in range(3) for message in queue.receive(5)] == ids
    queue.close()


def test_queues_of_one_file_are_apart(tmp_path: Path) -> None:
    """Two names in one file are two queues; a receipt of one is nothing to the other."""
    one, two = (SqliteQueue(tmp_path / "jobs.db", queue=name) for name in ("one", "two"))
    one.send([b"x"])
    assert two.receive(1) == []
    (message,) = one.receive(1)
    assert set(two.ack([message.receipt])) == {message.receipt}
    assert one.ack([message.receipt]) == {}
    one.close()
    two.close()


def test_a_late_ack_is_taken_while_nobody_else_has_the_message(tmp_path: Path) -> None:
    """An ack after the loan ran out is carried out, because SQLite knows that nobody else has the message."""
    clock = FakeClock()
    queue = SqliteQueue(tmp_path / "jobs.db", visibility_seconds=10, clock=clock)
    queue.send([b"x"])
    (message,) = queue.receive(1)
    clock.advance(11)
    assert queue.ack([message.receipt]) == {}
    assert queue.receive(1) == []
    queue.close()


def test_the_oldest_age_is_of_those_that_wait(tmp_path: Path) -> None:
    """The age of the oldest message is counted from sending, over redeliveries, and not for those in flight."""
    clock = FakeClock()
    queue = SqliteQueue(tmp_path / "jobs.db", clock=clock)
    queue.send([b"old"])
    (old,) = queue.receive(1)
    clock.advance(5)
    queue.send([b"new"])
    clock.advance(2)
    assert queue.statistics().oldest_age_seconds == pytest.approx(2)
    queue.nack([old.receipt])
    assert queue.statistics().oldest_age_seconds == pytest.approx(7)
    queue.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """A file of something else is named, and left as it was."""
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8" * 2000)
    with pytest.raises(SourceError, match=r"photo\.jpg is not a queue file") as raised:
        SqliteQueue(path)
    assert not isinstance(raised.value, QueueUnavailable)
    assert path.read_bytes() == b"\xff\xd8" * 2000


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_a_file_that_is_gone_ends_the_receiving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """SQLite goes on with a file that nobody else can reach; whoever receives from it is to know."""
    monkeypatch.setattr(sqlite_queue, "LOOK_SECONDS", 0.0)
    queue = SqliteQueue(tmp_path / "q.db")
    assert queue.receive(1) == []
    (tmp_path / "q.db").rename(tmp_path / "elsewhere.db")
    if is_replaced:
        SqliteQueue(tmp_path / "q.db").close()
    with pytest.raises(SourceError, match=r"q\.db was " + ("replaced" if is_replaced else "deleted")):
        queue.receive(1, wait_seconds=60)
    queue.close()


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_nothing_is_sent_into_a_file_that_is_gone(tmp_path: Path, is_replaced: bool) -> None:
    """Who sent it would be told that it is stored, and nobody could ever receive it; whoever asks how it is hears it too."""
    queue = SqliteQueue(tmp_path / "q.db")
    queue.send([b"before"])
    (tmp_path / "q.db").unlink()
    if is_replaced:
        SqliteQueue(tmp_path / "q.db").close()
    for call in (lambda: queue.send([b"lost"]), queue.statistics):
        with pytest.raises(SourceError, match=r"q\.db was " + ("replaced" if is_replaced else "deleted")):
            call()
    queue.close()


def test_a_change_of_the_working_directory_is_no_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue opened by a relative path is still there."""
    monkeypatch.setattr(sqlite_queue, "LOOK_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    queue = SqliteQueue("q.db")
    monkeypatch.chdir("/")
    assert queue.receive(1) == []
    queue.close()


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    """A SQLite file with other tables is named, and left as it was."""
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE entries (id)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SourceError, match="something else"):
        SqliteQueue(path)
    assert path.read_bytes() == before


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    """A queue file of a newer version names both versions."""
    path = tmp_path / "jobs.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(SourceError, match="version 9; this headrace reads version 2"):
        SqliteQueue(path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A queue file is made, its folder is not."""
    with pytest.raises(SourceError, match=r"folder .*nowhere does not exist"):
        SqliteQueue(tmp_path / "nowhere" / "jobs.db")


def test_a_closed_queue_says_so(tmp_path: Path) -> None:
    """Calls after close are QueueUnavailable."""
    queue = SqliteQueue(tmp_path / "jobs.db")
    queue.close()
    with pytest.raises(QueueUnavailable, match="closed"):
        queue.receive(1)


def test_a_file_of_version_1_is_brought_up_to_date(tmp_path: Path) -> None:
    """Messages and dead letters of a file without results stay, two processes may open it at once, and results are kept."""
    path = tmp_path / "jobs.db"
    connection = sqlite3.connect(path)
    connection.executescript(f"""
        CREATE TABLE queues (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
        CREATE TABLE messages (number INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, visible_at REAL NOT NULL,
            lent INTEGER NOT NULL, receive_count INTEGER NOT NULL, sent_at REAL NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL);
        CREATE INDEX messages_due ON messages (queue, visible_at, lent, sent_at);
        CREATE TABLE dead_letters (number INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, died_at REAL NOT NULL,
            receive_count INTEGER NOT NULL, sent_at REAL NOT NULL, id TEXT NOT NULL, reason TEXT NOT NULL, body BLOB NOT NULL);
        CREATE INDEX dead_letters_of ON dead_letters (queue);
        INSERT INTO queues VALUES (1, 'jobs');
        INSERT INTO messages VALUES (7, 1, 0, 0, 0, 5.0, 'm7', x'61');
        INSERT INTO dead_letters VALUES (3, 1, 6.0, 2, 5.0, 'm3', 'why', x'62');
        PRAGMA journal_mode = WAL;
        PRAGMA application_id = {APPLICATION_ID};
        PRAGMA user_version = 1;
    """)
    connection.close()
    program = "import sys; from headrace.sources.sqlite_queue import SqliteQueue; SqliteQueue(sys.argv[1]).close()"
    others = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    assert [process.wait(30) for process in others] == [0, 0]
    queue = SqliteQueue(path)
    (message,) = queue.receive(1)
    assert (message.id, message.body, message.kept) == ("m7", b"a", b"")
    assert queue.dead_letter([Burial(message, "later", b"{}")]) == {}
    letters = queue.peek(5, dead=True)
    assert [(letter.id, letter.kept) for letter in letters] == [("m3", b""), ("m7", b"{}")]
    queue.close()
