"""A queue in one SQLite file: the embedded default, shared by any number of processes of one host.

How this works: every message is one row with the moment from which it may be received (`visible_at`). Receiving moves
that moment into the future and counts the delivery; a loan that runs out therefore needs nobody to notice it. A receipt
is the row's number and its receive count, so the next delivery of the same message makes it stale. Row numbers are never
used twice (AUTOINCREMENT), also not after a redrive.

One connection per object behind one lock: statements take microseconds, and waiting happens outside of the lock, so that
acks never wait for a long poll. A connection per thread would need somebody to close it when its thread ends. Open the
queue after forking, not before: SQLite connections must not cross a fork.

Time is Unix time that nobody can set (`steady_time`): a wall clock that jumps moves no loan.

A late ack or extension is carried out as long as nobody else has received the message: SQLite knows that for certain, and
refusing it would only make somebody do the work again.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.base.clock import Clock
from headrace.base.errors import QueueRefused, QueueUnavailable, SourceError
from headrace.base.protocols import STALE
from headrace.base.records import Burial, DeadLetter, Message, Postponed, QueueStatistics
from headrace.base.settings import check
from headrace.sources.file_watch import FileWatch, Looks
from headrace.sources.steady_time import SteadyClock
from headrace.sources.untrusted import encode_entry, read_guarded

#: Version of the tables. 1: 2026-11, first. 2: 2026-11, column `kept`.
SCHEMA_VERSION = 2
#: Marks the file as ours (`PRAGMA application_id`): the bytes "hrqu".
APPLICATION_ID = 0x68727175

#: How long a statement waits for another process's transaction before the queue counts as unavailable.
BUSY_SECONDS = 10.0
#: Pauses of a long poll after somebody wrote to the file, which shows a little later; then it waits for the next write. Where
#: writes are not told, it goes on with the last pause.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.002, 0.05
#: How often, at most, a queue without messages looks whether its file is still there.
LOOK_SECONDS = 1.0

_TABLES = f"""
CREATE TABLE queues (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    visible_at REAL NOT NULL,       -- Unix seconds
    lent INTEGER NOT NULL,          -- 1 from receive until nack
    receive_count INTEGER NOT NULL,
    sent_at REAL NOT NULL,          -- Unix seconds
    id TEXT NOT NULL,
    body BLOB NOT NULL,             -- late, so that the columns before it are read without its overflow pages
    kept BLOB NOT NULL DEFAULT x''
);
-- Covers receive, in exactly the order of its ORDER BY so that nothing is sorted, and statistics.
CREATE INDEX messages_due ON messages (queue, visible_at, lent, sent_at);
CREATE TABLE dead_letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    died_at REAL NOT NULL,
    receive_count INTEGER NOT NULL,
    sent_at REAL NOT NULL,
    id TEXT NOT NULL,
    reason TEXT NOT NULL,
    body BLOB NOT NULL,
    kept BLOB NOT NULL DEFAULT x''
);
CREATE INDEX dead_letters_of ON dead_letters (queue);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

#: What turns a file of one version into one of the next. A worker of the version before goes on beside it: the columns it does
#: not know have defaults.
_MIGRATIONS = {
    1: """
ALTER TABLE messages ADD COLUMN kept BLOB NOT NULL DEFAULT x'';
ALTER TABLE dead_letters ADD COLUMN kept BLOB NOT NULL DEFAULT x'';
PRAGMA user_version = 2;
"""
}

#: Of a message, in any type that somebody may have written past this adapter: the columns of SQLite take what they are given.
_COLUMNS = (
    "CAST(id AS BLOB), CAST(body AS BLOB), receive_count, typeof(sent_at), CAST(sent_at AS REAL), CAST(kept AS BLOB)"
)
_RECEIVE = f"""
UPDATE messages SET visible_at = :until, lent = 1, receive_count = receive_count + 1
WHERE number IN (
    SELECT number FROM messages WHERE queue = :queue AND visible_at <= :now
    ORDER BY visible_at, lent, sent_at, number LIMIT :most
)
RETURNING number, {_COLUMNS}
"""
_OURS = "number = ? AND receive_count = ? AND lent = 1 AND queue = ?"


class SqliteQueue:
    """A queue in one SQLite file, shared by the processes of one host. Thread-safe.

    Sends are durable when `send` returns (fsync). Everything else is atomic and consistent, but a power cut may undo the
    last moments, which at-least-once delivery allows.

    Args:
        path: The file; made when it is missing. Not on a network file system: SQLite's shared log needs one host.
        queue: Name of the queue in the file; one file may hold several.
        visibility_seconds: How long a received message stays lent.
        clock: For tests.

    Raises:
        SourceError: If the file is not a queue of headrace or was written by a newer version.
        QueueUnavailable: If the file cannot be opened or is locked for long.
    """

    is_local = True
    """Who can write here can write on this machine: jobs may name files."""

    def __init__(
        self, path: str | Path, *, queue: str = "jobs", visibility_seconds: float = 30.0, clock: Clock | None = None
    ) -> None:
        check(0 < visibility_seconds <= 43_200, "visibility_seconds", visibility_seconds, "above 0, up to 43200 (12 h)")
        check(bool(queue), "queue", queue, "a name")
        self._path = Path(path)
        self._queue_name = queue
        self._visibility_seconds = float(visibility_seconds)
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._connection = _connect(self._path)
        # Absolute, so that a later change of the working directory is no missing file.
        self._file = self._path.absolute()
        self._identity = _identity(self._file)
        self._looked_at = -LOOK_SECONDS
        self._clock: Clock = clock or self._steady_clock()
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO queues (name) VALUES (?)", (queue,))
            (self._queue,) = connection.execute("SELECT number FROM queues WHERE name = ?", (queue,)).fetchone()
        self._watch: FileWatch | None = None
        with contextlib.suppress(OSError):
            self._watch = FileWatch(self._file.with_name(f"{self._file.name}-wal"))

    def _steady_clock(self) -> Clock:
        try:
            with self._translate_errors():
                return SteadyClock(self._connection)
        except BaseException:
            self._connection.close()
            raise

    @property
    def name(self) -> str:
        """Address of the queue."""
        return f"sqlite:///{self._path}?queue={self._queue_name}"

    @property
    def identity(self) -> str:
        """Its name from any folder, and through any link."""
        return f"sqlite:///{self._file.resolve()}?queue={self._queue_name}"

    @property
    def visibility_seconds(self) -> float:
        """Visibility timeout given to each delivery."""
        return self._visibility_seconds

    def send(self, bodies: Sequence[bytes], *, delay_seconds: float = 0.0) -> list[str]:
        """Store messages durably, in one transaction, and return their ids in order."""
        if not bodies:
            return []
        now = self._clock.unix_seconds()
        ids = [os.urandom(16).hex() for _ in bodies]
        try:
            with self._transaction(durable=True) as connection:
                connection.executemany(
                    "INSERT INTO messages (queue, visible_at, lent, receive_count, sent_at, id, body)"
                    " VALUES (?, ?, 0, 0, ?, ?, ?)",
                    [
                        (self._queue, now + delay_seconds, now, id_, bytes(body))
                        for id_, body in zip(ids, bodies, strict=True)
                    ],
                )
        finally:  # also of an error the file may be the reason; and what nobody else can open does not hold what is sent
            self._look_at_file()
        return ids

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to max_messages in the order sent; wait up to wait_seconds for the first."""
        give_up_at = time.monotonic() + wait_seconds
        looks = Looks(self._watch, FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, LOOK_SECONDS)
        while True:
            try:
                # Looking before locking: an idle worker must not take the write lock at each look.
                due_seconds = self._seconds_to_next()
                messages = self._lend(max_messages) if due_seconds <= 0 else []
            except (QueueRefused, QueueUnavailable):
                if not self._closed.is_set():
                    self._look_at_file()  # SQLite mixes the old file with the log of the new one: the reason is the file
                raise
            if messages:
                if (watch := self._watch) is not None and looks.missed():
                    watch.close()  # this file system does not tell of writes
                    self._watch = None
                return messages
            now = time.monotonic()
            if now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                self._look_at_file()
            left = give_up_at - time.monotonic()
            if left <= 0 or self._closed.is_set():
                return []
            looks.wait(self._closed, left, due_seconds)

    def ack(self, receipts: Sequence[str]) -> dict[str, str]:
        """Remove messages for good; STALE for those that are gone or that another receiver has."""
        return self._each(f"DELETE FROM messages WHERE {_OURS}", (), receipts)

    def nack(self, receipts: Sequence[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        """Offer messages again after a delay."""
        until = self._clock.unix_seconds() + delay_seconds
        return self._each(f"UPDATE messages SET visible_at = ?, lent = 0 WHERE {_OURS}", (until,), receipts)

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend the loans to this many seconds from now."""
        until = self._clock.unix_seconds() + seconds
        return self._each(f"UPDATE messages SET visible_at = ? WHERE {_OURS}", (until,), receipts)

    def postpone(self, postponed: Sequence[Postponed]) -> dict[str, str]:
        """Offer messages again later as if they were new, in one transaction; see `protocols.Queue.postpone`."""
        now = self._clock.unix_seconds()
        # A new row: with a receive count that starts again, receipts of old deliveries would become good again.
        return self._move(
            "INSERT INTO messages (queue, visible_at, lent, receive_count, sent_at, id, body, kept)"
            f" SELECT queue, ?, 0, 0, sent_at, id, body, ? FROM messages WHERE {_OURS}",
            {one.message.receipt: (now + one.delay_seconds, one.kept) for one in postponed},
        )

    def dead_letter(self, burials: Sequence[Burial]) -> dict[str, str]:
        """Move messages with their reasons to the dead letters, in one transaction."""
        now = self._clock.unix_seconds()
        return self._move(
            "INSERT INTO dead_letters (queue, died_at, receive_count, sent_at, id, reason, body, kept)"
            f" SELECT queue, ?, receive_count, sent_at, id, ?, body, ? FROM messages WHERE {_OURS}",
            {one.message.receipt: (now, one.reason, one.kept) for one in burials},
        )

    def _move(self, insert: str, values: Mapping[str, tuple[object, ...]]) -> dict[str, str]:
        """Carry out the statement with the values of each receipt, remove its message, and return those that are stale."""
        failures: dict[str, str] = {}
        if not values:
            return failures
        with self._transaction() as connection:
            for receipt, its in values.items():
                key = _parse(receipt)
                if key is None or connection.execute(insert, (*its, *key, self._queue)).rowcount != 1:
                    failures[receipt] = STALE
                else:
                    connection.execute(f"DELETE FROM messages WHERE {_OURS}", (*key, self._queue))
        return failures

    def statistics(self) -> QueueStatistics:
        """Return exact counts; costs about 0.1 us per message in the queue."""
        self._look_at_file()
        now = self._clock.unix_seconds()
        with self._use_connection() as connection:
            # One statement, so that the counts belong to one moment.
            visible, oldest, in_flight, delayed, dead = connection.execute(
                "SELECT visible, oldest, in_flight, hidden - in_flight,"
                " (SELECT count(*) FROM dead_letters WHERE queue = :queue) FROM"
                " (SELECT count(*) AS visible, min(sent_at) AS oldest FROM messages"
                "  WHERE queue = :queue AND visible_at <= :now),"
                " (SELECT count(*) AS hidden, coalesce(sum(lent), 0) AS in_flight FROM messages"
                "  WHERE queue = :queue AND visible_at > :now)",
                {"queue": self._queue, "now": now},
            ).fetchone()
        age = None if oldest is None else max(0.0, now - oldest)
        return QueueStatistics(visible=visible, in_flight=in_flight, delayed=delayed, dead=dead, oldest_age_seconds=age)

    def peek(self, max_messages: int, *, dead: bool = False) -> list[Message] | list[DeadLetter]:
        """Return messages that could be received now, or dead letters, without touching them; receipts are empty."""
        with self._use_connection() as connection:
            if dead:
                rows = connection.execute(
                    "SELECT CAST(id AS BLOB), CAST(body AS BLOB), CAST(reason AS BLOB), CAST(receive_count AS INTEGER),"
                    " CAST(died_at AS REAL), CAST(kept AS BLOB) FROM dead_letters WHERE queue = ?"
                    " ORDER BY number LIMIT ?",
                    (self._queue, max_messages),
                ).fetchall()
                return [
                    DeadLetter(encode_entry(id_).decode(), body, encode_entry(reason).decode(), *rest)
                    for id_, body, reason, *rest in rows
                ]
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM messages WHERE queue = ? AND visible_at <= ?"
                " ORDER BY visible_at, lent, sent_at, number LIMIT ?",
                (self._queue, self._clock.unix_seconds(), max_messages),
            ).fetchall()
            return [_message("", *row) for row in rows]

    def redrive(self, max_messages: int | None = None, *, rework: bool = False) -> int:
        """Move the oldest dead letters back, atomically, with a receive count of zero, and return how many."""
        most = -1 if max_messages is None else max_messages
        now = self._clock.unix_seconds()
        chosen = "SELECT number FROM dead_letters WHERE queue = ? ORDER BY number LIMIT ?"
        with self._transaction() as connection:
            moved = connection.execute(
                "INSERT INTO messages (queue, visible_at, lent, receive_count, sent_at, id, body, kept)"
                " SELECT queue, ?, 0, 0, sent_at, id, body, CASE WHEN ? THEN x'' ELSE kept END"
                f" FROM dead_letters WHERE number IN ({chosen}) ORDER BY number",
                (now, rework, self._queue, most),
            ).rowcount
            connection.execute(f"DELETE FROM dead_letters WHERE number IN ({chosen})", (self._queue, most))
        return moved

    def purge(self, *, dead: bool = False) -> int:
        """Remove all messages, those in flight included, or all dead letters, and return how many."""
        table = "dead_letters" if dead else "messages"
        with self._transaction() as connection:
            return connection.execute(f"DELETE FROM {table} WHERE queue = ?", (self._queue,)).rowcount

    def close(self) -> None:
        """Release the file; messages in flight come back after their visibility timeout. Repeating it does nothing."""
        self._closed.set()
        if self._watch is not None:
            self._watch.close()
        with self._lock:
            self._connection.close()

    def _seconds_to_next(self) -> float:
        """Return in how many seconds the next message can be received, 0 or less if one can now; infinite without any."""
        with self._use_connection() as connection:
            (visible_at,) = connection.execute(
                "SELECT min(visible_at) FROM messages WHERE queue = ?", (self._queue,)
            ).fetchone()
        return math.inf if visible_at is None else visible_at - self._clock.unix_seconds()

    def _look_at_file(self) -> None:
        """Raise SourceError if the path leads to another file now, or to none: what is sent goes there, never to this one."""
        found = _identity(self._file)
        if found != self._identity:
            what = "deleted" if found is None else "replaced by another"
            raise SourceError(
                f"the queue file {self._path} was {what} while it was in use: what is sent there no longer arrives here, and "
                "what was in it is lost unless you have a copy; start the run again"
            )

    def _lend(self, max_messages: int) -> list[Message]:
        with self._transaction() as connection:
            now = self._clock.unix_seconds()  # after the lock is ours, so that waiting for it does not eat the loan
            rows = connection.execute(
                _RECEIVE,
                {"until": now + self._visibility_seconds, "queue": self._queue, "now": now, "most": max_messages},
            ).fetchall()
        rows.sort()  # RETURNING promises no order
        return [_message(f"{row[0]}.{row[3]}", *row[1:]) for row in rows]

    def _each(self, statement: str, values: tuple[float, ...], receipts: Sequence[str]) -> dict[str, str]:
        """Carry out the statement for each receipt, in one transaction, and return those that it did not touch."""
        failures: dict[str, str] = {}
        if not receipts:
            return failures
        with self._transaction() as connection:
            cursor = connection.cursor()
            for receipt in dict.fromkeys(receipts):
                key = _parse(receipt)
                if key is None or cursor.execute(statement, (*values, *key, self._queue)).rowcount != 1:
                    failures[receipt] = STALE
        return failures

    @contextlib.contextmanager
    def _use_connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translate_errors():
            yield self._connection

    @contextlib.contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self._use_connection() as connection:
            # NORMAL syncs at checkpoints alone. After a power cut the last acks may be missing: the messages are then
            # delivered again, which at-least-once allows, while an fsync per ack would cost milliseconds. A send that
            # was confirmed must never be missing, hence FULL.
            if durable:
                connection.execute("PRAGMA synchronous = FULL")
            try:
                # IMMEDIATE: a transaction that starts by reading and then wants to write fails at once with "locked",
                # whatever the busy timeout, when another process wrote in between.
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            finally:
                if durable:
                    connection.execute("PRAGMA synchronous = NORMAL")

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        if self._closed.is_set():
            raise QueueUnavailable(f"{self.name} was closed")
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the extended code is above it
            if code in _BROKEN:
                raise SourceError(
                    f"the queue file {self._path} is damaged ({error}); restore it or use another"
                ) from error
            if code in _PASSING:
                raise QueueUnavailable(f"{self.name}: {error}") from error
            raise QueueRefused(f"{self.name}: {error}") from error


def _message(receipt: str, id_: bytes, body: bytes, count: int, sent_type: str, sent_at: float, kept: bytes) -> Message:
    """Return a row's message; anybody who may write to the file can add one whose columns hold something else."""

    def read(_: object) -> Message:
        if sent_type not in ("real", "integer"):
            raise ValueError(f"sent_at is {sent_type}, expected a number")
        return Message(id_.decode(), body, receipt, count, sent_at, kept)

    def read_malformed(_: object, reason: str) -> Message:
        return Message(encode_entry(id_).decode(), body, receipt, count, sent_at, malformed=reason)

    return read_guarded(None, read, read_malformed)


_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
#: What ends when others let go of the file, the disk has room again, or the file system answers.
_PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_SCHEMA,
)


def _parse(receipt: str) -> tuple[int, int] | None:
    number, _, count = receipt.partition(".")
    return (int(number), int(count)) if number.isdecimal() and count.isdecimal() else None


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise QueueUnavailable(f"the queue file {path} cannot be looked at: {error.strerror}") from error
    return status.st_dev, status.st_ino


def _connect(path: Path) -> sqlite3.Connection:
    """Return a connection to a queue file, made when missing; never changes a file that is something else."""
    if not path.parent.is_dir():
        raise SourceError(f"the queue file {path} cannot be made: the folder {path.parent} does not exist")
    try:
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=32
        )
    except sqlite3.Error as error:
        raise QueueUnavailable(f"the queue file {path} cannot be opened: {error}") from error
    try:
        _prepare(connection, path)
    except sqlite3.OperationalError as error:
        connection.close()
        raise QueueUnavailable(f"the queue file {path} cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        connection.close()
        raise SourceError(
            f"{path} is not a queue file ({error}); expected a file made by headrace, or a name that does not exist yet"
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    # In one transaction: another process that makes the file between two of the questions must not be seen by halves.
    connection.execute("BEGIN")
    try:
        found = _version(connection, path)
    finally:
        connection.execute("ROLLBACK")
    if found != SCHEMA_VERSION:
        _enable_shared_log(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Asked again: another process may have been faster.
            while (version := _version(connection, path)) != SCHEMA_VERSION:
                for statement in (_MIGRATIONS[version] if version else _TABLES).split(";\n"):
                    connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    connection.execute("PRAGMA synchronous = NORMAL")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a queue file; 0 for an empty file, an error for anything else."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == APPLICATION_ID and 1 <= version <= SCHEMA_VERSION:
        return int(version)
    if application == APPLICATION_ID:
        raise SourceError(
            f"the queue file {path} has version {version}; this headrace reads version {SCHEMA_VERSION}: update headrace"
        )
    if num_tables or application:
        raise SourceError(f"{path} is a SQLite file of something else, not a queue; name another file")
    return 0


def _enable_shared_log(connection: sqlite3.Connection, path: Path) -> None:
    """Set WAL, with which readers and one writer do not wait for each other; it stays with the file."""
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError:  # two processes at once: SQLite answers "locked" here without waiting
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise SourceError(f"the file system of {path} does not allow SQLite's shared log (WAL); use a local disk")
