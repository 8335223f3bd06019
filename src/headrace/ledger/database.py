"""SQLite files that are kept, the ledger's first: opening them, their tables and versions, and SQLite's errors in words.

How this works: WAL, so that readers and one writer do not wait for each other; every write is one short IMMEDIATE transaction
that is on disk (fsync) when it returns, so that a process that is killed leaves whole entries and nothing else. Tables are
made by migrations: `PRAGMA user_version` counts those that were applied, a later headrace appends others, and none is ever
changed. Entries of the ledger are only ever added: triggers refuse to change or remove one. That guards against mistakes, not
against somebody who opens the file to forge it.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import LedgerError

#: What SQLite says of a disk that is full or fails, of a file that was damaged there, and of another process that holds it.
_PASSING = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
}
#: How long a statement waits for another process's transaction.
BUSY_SECONDS = 30.0

_PREDICTIONS = """
CREATE TABLE predictions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created REAL NOT NULL,           -- Unix seconds at which it was written
    run TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    plan_id TEXT NOT NULL,
    hardware TEXT NOT NULL,          -- fingerprint of the run's machine
    change TEXT NOT NULL,            -- JSON of runs.formats.prediction.Change
    says TEXT NOT NULL,
    low REAL NOT NULL, mid REAL NOT NULL, high REAL NOT NULL,  -- ratio of throughput
    headrace_version TEXT NOT NULL,
    document TEXT NOT NULL           -- JSON of runs.formats.prediction.PredictionDocument
)
"""
_MEASUREMENTS = """
CREATE TABLE measurements (
    prediction INTEGER PRIMARY KEY REFERENCES predictions (number),
    measured_at REAL NOT NULL,       -- Unix seconds at which measuring began
    low REAL NOT NULL, mid REAL NOT NULL, high REAL NOT NULL,
    how TEXT NOT NULL,
    headrace_version TEXT NOT NULL
)
"""

_ATTEMPTS = """
CREATE TABLE attempts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created REAL NOT NULL,
    model TEXT NOT NULL,             -- SHA-256 of the model as it was given
    technique TEXT NOT NULL,
    candidate TEXT NOT NULL,         -- the variant as `headrace validate` takes it
    artifact TEXT NOT NULL,          -- SHA-256 of its file
    verdict TEXT NOT NULL,
    gate TEXT,                       -- that rejected it or left it open
    says TEXT NOT NULL,
    golden TEXT NOT NULL,            -- SHA-256 of the golden set that judged it; empty: none did
    hardware TEXT NOT NULL,
    key TEXT NOT NULL,               -- of everything that decides the outcome
    headrace_version TEXT NOT NULL,
    document TEXT NOT NULL           -- JSON of runs.formats.optimization.Attempt
)
"""
_DECISIONS = """
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created REAL NOT NULL,
    plan TEXT NOT NULL,              -- path of the Plan's file
    action TEXT NOT NULL,            -- accept or rollback
    attempt INTEGER REFERENCES attempts (number),
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    before TEXT,                     -- the file's text; NULL: there was none
    after TEXT,                      -- NULL: it was taken away
    headrace_version TEXT NOT NULL
)
"""
_EVENTS = """
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created REAL NOT NULL,
    kind TEXT NOT NULL,              -- skip, validation, replay or pipeline
    attempt TEXT NOT NULL,           -- id of the attempt that it is about; empty: none
    technique TEXT NOT NULL,
    golden TEXT NOT NULL,            -- SHA-256 of the golden set that judged; empty: none did
    headrace_version TEXT NOT NULL,
    document TEXT NOT NULL           -- JSON of runs.formats.events.Event
)
"""


def _add_only(table: str) -> tuple[str, ...]:
    return tuple(
        f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}"
        f" BEGIN SELECT RAISE(ABORT, '{table} are only ever added'); END"
        for event in ("UPDATE", "DELETE")
    )


#: Migration n brings a file from version n to n + 1. 1: 2026-11, first. 2: 2026-11, attempts and decisions.
#: 3: 2026-11, events.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        _PREDICTIONS,
        "CREATE INDEX predictions_of ON predictions (pipeline)",
        _MEASUREMENTS,
        *_add_only("predictions"),
        *_add_only("measurements"),
    ),
    (
        _ATTEMPTS,
        "CREATE INDEX attempts_of ON attempts (key)",
        _DECISIONS,
        *_add_only("attempts"),
        *_add_only("decisions"),
    ),
    (_EVENTS, *_add_only("events")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """What a file is, so that none is taken for another."""

    name: str
    """For people."""
    application_id: int
    """Marks it as ours (`PRAGMA application_id`)."""
    migrations: tuple[tuple[str, ...], ...]
    made_by: str
    """What makes one, for the message that there is none."""
    elsewhere: str
    """How to name another file."""


#: Its number is the bytes "hrlg".
LEDGER = FileKind(
    name="ledger",
    application_id=0x68726C67,
    migrations=MIGRATIONS,
    made_by="`headrace whatif` and `headrace optimize` make it, --ledger FILE names another",
    elsewhere="--ledger FILE or HEADRACE_LEDGER",
)


def connect(
    path: Path, kind: FileKind | None = None, *, must_exist: bool = False, busy_seconds: float = BUSY_SECONDS
) -> sqlite3.Connection:
    """Return a connection to a file in its newest version; never changes a file that is something else.

    Args:
        path: The file; made when it is missing, and so are the folders above it.
        kind: What it is; a ledger if None.
        must_exist: Raise instead of making it.
        busy_seconds: How long a statement waits for another process's transaction.

    Raises:
        LedgerError: If the file is missing, is of another kind or of a newer headrace, is damaged, or cannot be read and
            written.
    """
    kind = kind or LEDGER
    if must_exist and not path.exists():
        raise LedgerError(f"there is no {kind.name} {path}; {kind.made_by}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(
            f"the folder of the {kind.name} {path} cannot be made: {error.strerror}; {_explain_elsewhere(kind)}"
        ) from error
    _check_files(path, kind)
    with translate_errors(path, kind):
        connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path, kind)
        except BaseException:
            connection.close()
            raise
    return connection


def _check_files(path: Path, kind: FileKind) -> None:
    """Refuse what SQLite would wait for or remove: a pipe in the place of the file, or of one that stands beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        file = Path(f"{path}{suffix}")  # not `with_name`: `.` has none
        with contextlib.suppress(OSError):  # it is not there, or SQLite says what is wrong with it
            if not stat.S_ISREG(file.stat().st_mode):
                raise LedgerError(
                    f"the {kind.name} {path} cannot be used: {file} is a folder, device or pipe, and no file; "
                    f"{_explain_elsewhere(kind)}"
                )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing, durably; waits for other writers up to `BUSY_SECONDS`."""
    # IMMEDIATE: a transaction that begins by reading and then wants to write fails at once where another wrote in between.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def translate_errors(path: Path, kind: FileKind = LEDGER) -> Iterator[None]:
    """Turn SQLite's errors into LedgerError with what to do next."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise LedgerError(f"the {kind.name} {path} cannot be used: {error}; {_explain_elsewhere(kind)}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite gives damaged text as it is
        raise LedgerError(
            f"{path} is damaged or not a {kind.name} ({error}); {_explain_elsewhere(kind)}. `sqlite3 {path} .recover` may save "
            "what it holds"
        ) from error


def may_pass(error: LedgerError) -> bool:
    """Return whether a file could not be used for want of room, a disk that fails or what another process does.

    Else the file that was named is none that can be used: a folder, one of another kind, without rights.
    """
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _PASSING  # the rest says more of the same
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _explain_elsewhere(kind: FileKind) -> str:
    return f"look at its rights and at who else uses it, or name another file with {kind.elsewhere}"


def _prepare(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    if _version(connection, path, kind) < len(kind.migrations):
        _enable_shared_log(connection, path)
        with transaction(connection):
            # Asked again: another process may have been faster.
            for migration in kind.migrations[_version(connection, path, kind) :]:
                for statement in migration:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {kind.application_id}")
            connection.execute(f"PRAGMA user_version = {len(kind.migrations)}")
    # Entries are few, and a prediction counts only if it was there before its measurement: each is synced.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _version(connection: sqlite3.Connection, path: Path, kind: FileKind) -> int:
    """Return how many migrations were applied; 0 for an empty file, an error for anything that is of another kind."""
    # One transaction: another process may be making the file, and half of its work would look like somebody else's.
    is_alone = not connection.in_transaction
    if is_alone:
        connection.execute("BEGIN")
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        if is_alone and connection.in_transaction:
            connection.execute("COMMIT")
    if application != kind.application_id and (num_tables or application):
        raise LedgerError(
            f"{path} is a SQLite file of something else, not a {kind.name}; name another file with {kind.elsewhere}"
        )
    if version > len(kind.migrations):
        raise LedgerError(
            f"the {kind.name} {path} has version {version}; this headrace knows versions up to {len(kind.migrations)}: update "
            "headrace"
        )
    return int(version)


def _enable_shared_log(connection: sqlite3.Connection, path: Path) -> None:
    """Set WAL; it stays with the file."""
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            # Two processes at once: SQLite answers "locked" here without waiting.
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise LedgerError(f"the file system of {path} does not allow SQLite's shared log (WAL); use a local disk")
