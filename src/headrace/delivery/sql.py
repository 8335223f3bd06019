"""Results as rows of a table of a SQL database, SQLite or PostgreSQL, through SQLAlchemy, which is imported here alone.

How this works: results are kept until a flush writes them in one transaction; then they are durable, and their jobs settled.
The job's id is the key: a result that comes again replaces the row. So a delivery that was repeated leaves one row, and
several processes may write to one table; rows go in the order of their ids, or two transactions could wait for one another.
A table of the user's may refuse a row for what it holds (a CHECK, a trigger, a foreign key): rows that are refused together
are written in halves, until the one that is to blame is alone, and that one is rejected.
"""

from __future__ import annotations

import importlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from headrace.base.errors import DeliveryFailed, DeliveryRejected, MissingExtra, ResultsRefused, SettingsError
from headrace.base.records import Job
from headrace.base.settings import build, check
from headrace.delivery.encoding import attributes_of, encode

logger = logging.getLogger("headrace")

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"connect_args": {"timeout": 30.0}},
    "postgresql": {"pool_pre_ping": True, "connect_args": {"client_encoding": "utf8"}},
}
#: Of an id: PostgreSQL's index takes 2,704 bytes.
_MOST_ID_BYTES = 2_000
#: What PostgreSQL says where the row is to blame: its data, a constraint, a view, a trigger, an index that cannot hold it.
_OF_THE_ROW = ("22", "23", "44", "P0", "54000")
#: What PostgreSQL says where no connection is to be had: too many, or it starts or stops.
_NO_CONNECTION = ("53300", "57P03")
_FULL = re.compile(r"too many (clients|connections)|remaining connection slots", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_EXPECTED = "sqlite:///results.db?table=NAME or postgresql://USER@HOST/DATABASE?table=NAME"


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlSettings:
    """When results are written; the Plan's `[stages.deliver.options]`."""

    rows_per_flush: int = 500
    """Results after which they are written."""
    seconds_per_flush: float = 1.0
    """Time after which they are written anyway."""

    def __post_init__(self) -> None:
        check(self.rows_per_flush >= 1, "rows_per_flush", self.rows_per_flush, "a whole number >= 1")
        check(self.seconds_per_flush > 0, "seconds_per_flush", self.seconds_per_flush, "a number of seconds above 0")


class SqlTable:
    """Writes `id`, `task`, `attributes`, `result` and `run` into a table; the first is its key.

    `attributes` (null where a job has none) and `result` are JSON text; `run` tells the runs apart, and what a resumed run
    goes on with is read by it. A result of the same id replaces the row.

    A run's notes tell `deliver.database_writes`, the microseconds that they took (`database_write_microseconds`), that
    connections were waited for (`database_connect_microseconds`) and for which none was to be had
    (`database_full_microseconds`).

    Args:
        address: `sqlite:///results.db`, `sqlite:////absolute.db` or `postgresql://USER@HOST/DATABASE`, with `?table=NAME`
            behind it (`results` without); the table is created if missing. PostgreSQL's password comes from `PGPASSWORD` or
            `~/.pgpass`.
        rows_per_flush: Results after which they are written.
        seconds_per_flush: Time after which they are written anyway.

    Raises:
        SettingsError: If the address names no table.
        MissingExtra: If SQLAlchemy or the database's driver is not installed.
    """

    default_workers = 1

    def __init__(self, address: str, *, rows_per_flush: int = 500, seconds_per_flush: float = 1.0) -> None:
        scheme, url, self._table_name = _parse(address)
        try:
            self._sql = importlib.import_module("sqlalchemy")
            self._insert = importlib.import_module(f"sqlalchemy.dialects.{scheme}").insert
            self._engine = self._sql.create_engine(url, **_OPTIONS[scheme])
        except ImportError:
            raise MissingExtra(f"results in {scheme}://", "sql") from None
        except (self._sql.exc.ArgumentError, ValueError):  # whose words may hold a part of a password
            raise SettingsError(f"--results: this is no address of a database; expected {_EXPECTED}") from None
        self.shown = (
            f"{scheme}://{self._engine.url.host or ''}/{self._engine.url.database or ''}, table {self._table_name}"
        )
        self._given = SqlSettings(rows_per_flush=rows_per_flush, seconds_per_flush=seconds_per_flush)
        self._set(self._given)
        self._context: Any = None
        self._full_since: float | None = None  # no connection is to be had; by time.monotonic
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, str] = {}
        self._run = uuid.uuid4().hex
        text = self._sql.Text
        columns = [self._sql.Column(name, text) for name in ("task", "attributes", "result", "run")]
        key = self._sql.Column("id", text, primary_key=True)
        self._table = self._sql.Table(self._table_name, self._sql.MetaData(), key, *columns)

    def _set(self, settings: SqlSettings) -> None:
        self.flush_items, self.flush_seconds = settings.rows_per_flush, settings.seconds_per_flush

    @property
    def checkpoint(self) -> Path:
        """Folder for the state that resuming needs: beside a SQLite file; of a server's database in the working folder."""
        url = self._engine.url
        if url.drivername == "sqlite":
            return Path(f"{url.database}.{self._table_name}.checkpoint")
        return Path(f"{url.host or 'local'}-{url.database}-{self._table_name}.checkpoint")

    @property
    def has_results(self) -> bool:
        """Whether the table holds any row."""
        if not self._is_there():
            return False
        with self._connected() as connection:
            return connection.execute(self._sql.select(self._table.c.id).limit(1)).first() is not None

    def mark(self) -> dict[str, Any]:
        """Return the name of a new run."""
        self._run = uuid.uuid4().hex
        return {"run": self._run}

    def recover(self, mark: Mapping[str, Any]) -> set[str]:
        """Return the ids of the results since a mark; see `protocols.Recoverable`."""
        if not self._is_there():
            raise FileNotFoundError(self.shown)
        query = self._sql.select(self._table.c.id)
        if run := mark.get("run"):
            self._run = str(run)
            query = query.where(self._table.c.run == self._run)
        with self._connected() as connection:
            return {str(row[0]) for row in connection.execute(query)}

    def open(self, context: Any) -> None:
        """Make the table if it is missing, and see that rows can be written: one is, and taken back.

        Raises:
            SettingsError: If it cannot be used, or an option of the Plan's `[stages.deliver.options]` is not in `SqlSettings`.
        """
        self._set(
            build(
                SqlSettings, asdict(self._given) | dict(context.options if context else {}), "[stages.deliver.options]"
            )
        )
        self._context = context
        with self._connected() as connection:
            if connection.dialect.name == "postgresql":
                encoding = str(connection.exec_driver_sql("SHOW server_encoding").scalar())
                if encoding != "UTF8":
                    raise SettingsError(
                        f"results cannot be kept in {self.shown}: its encoding is {encoding}, which cannot store every result; "
                        "expected a database created with ENCODING 'UTF8'"
                    )
            try:
                self._table.create(connection, checkfirst=True)
                connection.commit()
            except (self._sql.exc.ProgrammingError, self._sql.exc.IntegrityError):
                connection.rollback()  # another process may have made it meanwhile; if not, the next line says so
            probe = {"id": "headrace-probe", "task": "", "attributes": "{}", "result": "{}", "run": self._run}
            try:
                connection.execute(self._upsert(), [probe])
            except self._sql.exc.SQLAlchemyError as error:
                # What a table refuses for its values says nothing of other rows; a column that must be filled, of all.
                if not self._is_of_the_row(error) or "not null" in _say(error).lower().replace("-", " "):
                    raise
            connection.rollback()

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result for the next flush; see `protocols.Delivery.deliver`."""
        row = self._row(job, result)
        with self._lock:
            self._rows[job.id] = row
        return False

    def check(self, job: Job, result: Any) -> bytes:
        """Return a result's row as JSON; see `protocols.Checkable`."""
        return encode(self._row(job, result))

    def _row(self, job: Job, result: Any) -> dict[str, Any]:
        attributes = attributes_of(job)
        row = {
            "id": job.id,
            "task": job.task,
            "attributes": encode(attributes).decode() if attributes else None,
            "result": encode(result).decode(),
            "run": self._run,
        }
        # Refused now, for this job alone: in `flush` it would hold up all others for ever.
        words = job.id + job.task
        if "\0" in words or not _is_unicode(words) or len(job.id.encode()) > _MOST_ID_BYTES:
            raise DeliveryRejected(
                f"result.id: a database cannot store the id {job.id[:100]!r} ({len(job.id):,} characters) as a key; expected "
                f"text without NUL, at most {_MOST_ID_BYTES:,} bytes: send the job under another id"
            )
        return row

    def flush(self) -> None:
        """Write the kept results in one transaction; in several if the table refuses some.

        Raises:
            DeliveryFailed: If they cannot be written; they stay kept.
            ResultsRefused: If they are written, but for rows that the table refuses.
        """
        with self._lock:
            if self._rows:
                self._write(sorted(self._rows))
            if self._refused:
                refused, self._refused = self._refused, {}
                raise ResultsRefused(refused)

    def _write(self, ids: list[str]) -> None:
        """Write rows in one transaction; in halves if one of them is to blame that it fails."""
        try:
            self._execute([self._rows[one] for one in ids])
        except self._sql.exc.SQLAlchemyError as error:
            if not self._is_of_the_row(error):
                raise DeliveryFailed(f"{self.shown} cannot be written: {_say(error)}") from None
            if len(ids) > 1:
                self._write(ids[: len(ids) // 2])
                self._write(ids[len(ids) // 2 :])
                return
            self._refused[ids[0]] = f"result.refused: {self.shown} refuses this row: {_say(error)}"
        for one in ids:
            del self._rows[one]

    def _execute(self, rows: list[dict[str, Any]]) -> None:
        began = time.monotonic()
        try:
            connection = self._engine.connect()
        except self._sql.exc.SQLAlchemyError as error:
            if self._full_since is None and _is_full(error):
                self._full_since = began
            raise
        connected = time.monotonic()
        with connection, connection.begin():
            connection.execute(self._upsert(), rows)
        ended = time.monotonic()
        if self._full_since is not None:
            self._count("full_microseconds", round(1e6 * (connected - self._full_since)))
            self._full_since = None
        else:
            self._count("connect_microseconds", round(1e6 * (connected - began)))
        self._count("write_microseconds", round(1e6 * (ended - connected)))
        self._count("writes", 1)

    def _count(self, name: str, number: int) -> None:
        if self._context is not None:
            self._context.count(f"deliver.database_{name}", number)

    def _is_of_the_row(self, error: Exception) -> bool:
        """Return whether a statement failed for what a row holds: it always will, and others may not."""
        if state := getattr(getattr(error, "orig", None), "sqlstate", None):
            return str(state).startswith(_OF_THE_ROW)
        return isinstance(error, self._sql.exc.IntegrityError | self._sql.exc.DataError)

    def close(self) -> None:
        """Write the rest, and let go of the connections."""
        try:
            self.flush()
        finally:
            self._engine.dispose()

    def _upsert(self) -> Any:
        insert = self._insert(self._table)
        new = {name: insert.excluded[name] for name in ("task", "attributes", "result", "run")}
        return insert.on_conflict_do_update(index_elements=["id"], set_=new)

    def _is_there(self) -> bool:
        if self._engine.url.drivername == "sqlite" and not Path(self._engine.url.database or "").is_file():
            return False  # connecting would make an empty file
        with self._connected() as connection:
            return bool(self._sql.inspect(connection).has_table(self._table_name))

    def _connected(self) -> Any:
        return _Connected(self)


class _Connected:
    """A connection whose failures are errors of settings: before a run nothing is tried again."""

    def __init__(self, delivery: SqlTable) -> None:
        self._delivery = delivery
        self._sql, self._engine = delivery._sql, delivery._engine  # noqa: SLF001 - a part of it

    def __enter__(self) -> Any:
        try:
            self._connection = self._engine.connect()
        except self._sql.exc.SQLAlchemyError as error:
            raise self._explain(error) from None
        return self._connection

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._connection.close()
        if isinstance(error, self._sql.exc.SQLAlchemyError):
            raise self._explain(error) from None

    def _explain(self, error: Exception) -> SettingsError:
        return SettingsError(
            f"results cannot be kept in {self._delivery.shown}: {_say(error)}; check that the database is there, that it "
            "may be written, and that the table has the columns id (its key), task, attributes, "
            "result and run, all of them text"
        )


def _parse(address: str) -> tuple[str, str, str]:
    """Return scheme, SQLAlchemy's address and table of an address."""
    check(isinstance(address, str), "address", type(address).__name__, f"a text: {_EXPECTED}")
    scheme, _, rest = address.partition("://")
    base, _, query = rest.partition("?")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    table = settings.pop("table", "results")
    if scheme.lower() not in _DRIVERS or not base.strip("/"):
        raise SettingsError(f"--results: this address names no database; expected {_EXPECTED}")
    if "@" in base.partition("@")[2] or "@" in base.partition("/")[2]:
        raise SettingsError(
            "--results: in this address an '@' or '/' stands in a user's name or password; write them as %40 and %2F, or give "
            "the password in PGPASSWORD or ~/.pgpass"
        )
    if scheme.lower() == "sqlite" and (settings or ":memory:" in base):
        wrong = f"{next(iter(settings))}=" if settings else ":memory:, which is gone with the run"
        raise SettingsError(f"--results: {wrong}: for SQLite expected {_EXPECTED.partition(' or ')[0]}")
    if not _NAME.fullmatch(table):
        raise SettingsError(
            f"--results: table={table!r}: expected letters, digits and _, at most 63, with no digit first"
        )
    more = f"?{urlencode(settings)}" if settings else ""
    return scheme.lower(), f"{_DRIVERS[scheme.lower()]}://{base}{more}", table


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_full(error: Exception) -> bool:
    """Return whether the database has no connection left for us."""
    state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
    return state in _NO_CONNECTION or bool(_FULL.search(_say(error)))


def _say(error: Exception) -> str:
    """Return what the driver said, without the statement and its values."""
    said = str(getattr(error, "orig", None) or error)
    return (said.splitlines() or [type(error).__name__])[0]
