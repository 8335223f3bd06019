"""Results in a table of a PostgreSQL server, which the tests start themselves."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.base.errors import DeliveryFailed, DeliveryRejected, ResultsRefused, SettingsError
from headrace.base.records import Job
from headrace.cli.loading import parse_results
from headrace.testing.delivery_conformance import DeliveryConformance

pytest.importorskip("sqlalchemy")
psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a server that listens at a socket in a folder of its own, and return the folder."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.fail("PostgreSQL is not installed") if os.environ.get("CI") else pytest.skip(
            "PostgreSQL is not installed"
        )
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to be root
    home = Path(tempfile.mkdtemp(prefix="headrace-pg-"))  # a short path: a socket's takes 107 bytes
    if user:
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
    data = home / "data"
    as_user: dict[str, Any] = {"user": user, "cwd": home, "stdout": subprocess.DEVNULL}
    subprocess.run(
        [programs[-1], "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        check=True,
        **as_user,
    )
    server = subprocess.Popen(
        [programs[-1].with_name("postgres"), "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"],
        stderr=subprocess.DEVNULL,
        **as_user,
    )
    give_up_at = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host=str(home), user="tester", dbname="postgres").close()
            break
        except psycopg.OperationalError:
            if time.monotonic() > give_up_at or server.poll() is not None:
                server.kill()
                pytest.fail("PostgreSQL did not start")
            time.sleep(0.1)
    yield str(home)
    server.terminate()
    server.wait(20)
    shutil.rmtree(home)


class TestPostgres(DeliveryConformance):
    """A table of a server."""

    @pytest.fixture
    def make_delivery(self, postgres: str) -> Iterator[Callable[[], Any]]:
        """Return a delivery to the same table, which no other test has used."""
        self.server = postgres
        made = []

        def make() -> Any:
            made.append(parse_results(f"postgresql:///postgres?host={postgres}&user=tester&table=scores"))
            return made[-1]

        yield make
        for delivery in made:
            delivery.close()
        with psycopg.connect(host=postgres, user="tester", dbname="postgres") as connection:
            connection.execute("drop table if exists scores")

    def read_results(self) -> dict[str, Any]:
        """Read the table."""
        with psycopg.connect(host=self.server, user="tester", dbname="postgres") as connection:
            rows = connection.execute("select id, result from scores").fetchall()
        return {one: msgspec.json.decode(result) for one, result in rows}

    def test_connections_that_were_cut_are_made_again(self, make_delivery: Any) -> None:
        """A restart of the server in the middle of a run loses nothing."""
        delivery = make_delivery()
        delivery.open(None)
        delivery.deliver(Job("a", b""), 1)
        delivery.flush()
        with psycopg.connect(host=self.server, user="tester", dbname="postgres") as connection:
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")
        delivery.deliver(Job("b", b""), 2)
        delivery.close()
        assert self.read_results() == {"a": 1, "b": 2}

    def test_several_processes_may_make_the_table(self, make_delivery: Any) -> None:
        """Whoever comes second finds it."""
        deliveries = [make_delivery() for _ in range(8)]
        begin = threading.Barrier(len(deliveries))

        def open_one(delivery: Any) -> None:
            begin.wait()
            delivery.open(None)

        with ThreadPoolExecutor(len(deliveries)) as pool:
            list(pool.map(open_one, deliveries))
        assert self.read_results() == {}

    def test_a_table_that_takes_no_rows_is_refused_before_the_first(self, make_delivery: Any) -> None:
        """Without a key nothing can be replaced; each flush would fail for ever."""
        with psycopg.connect(host=self.server, user="tester", dbname="postgres") as connection:
            connection.execute("create table scores (id text, task text, attributes text, result text, run text)")
        with pytest.raises(SettingsError, match=r"id \(its key\)"):
            make_delivery().open(None)

    def test_an_id_that_no_index_takes_is_rejected_alone(self, make_delivery: Any) -> None:
        """And the others are written."""
        delivery = make_delivery()
        delivery.open(None)
        with pytest.raises(DeliveryRejected, match="at most 2,000 bytes"):
            delivery.deliver(Job("x" * 2001, b""), 1)
        delivery.deliver(Job("b", b""), 2)
        delivery.flush()
        assert self.read_results() == {"b": 2}

    def test_rows_that_a_trigger_refuses_hold_up_no_other(self, make_delivery: Any) -> None:
        """Nor those that a constraint refuses at the end of the transaction; the server's connection goes on."""
        with psycopg.connect(host=self.server, user="tester", dbname="postgres") as connection:
            connection.execute("create table if not exists tasks (task text primary key)")
            connection.execute("insert into tasks values ('') on conflict do nothing")
            connection.execute(
                "create table scores (id text primary key, task text references tasks deferrable initially deferred, "
                "attributes text, result text, run text)"
            )
            connection.execute(
                "create or replace function refuse() returns trigger language plpgsql as $$ begin "
                "if new.result = '2' then raise exception 'no twos'; end if; return new; end $$"
            )
            connection.execute("create trigger refuses before insert on scores for each row execute function refuse()")
        delivery = make_delivery()
        delivery.open(None)
        for one, task, result in (("a", "", 1), ("b", "", 2), ("c", "unknown", 3), ("d", "", 4)):
            delivery.deliver(Job(one, b"", task=task), result)
        with pytest.raises(ResultsRefused) as refused:
            delivery.flush()
        assert set(refused.value.reasons) == {"b", "c"}
        assert "no twos" in refused.value.reasons["b"]
        assert self.read_results() == {"a": 1, "d": 4}

    def test_a_full_database_is_counted_until_there_is_room(self, make_delivery: Any) -> None:
        """The results are kept meanwhile, and the run's notes say how long no connection was to be had."""
        with psycopg.connect(host=self.server, user="tester", dbname="postgres", autocommit=True) as connection:
            connection.execute("create role guest login connection limit 1")
            connection.execute("grant all on schema public to guest")
            notes: Counter[str] = Counter()
            context = SimpleNamespace(
                options={"rows_per_flush": 7}, count=lambda name, number: notes.update({name: number})
            )
            delivery = parse_results(f"postgresql:///postgres?host={self.server}&user=guest&table=scores")
            delivery.open(context)
            assert delivery.flush_items == 7
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'guest'")
            delivery.deliver(Job("a", b""), 1)
            other = psycopg.connect(host=self.server, user="guest", dbname="postgres")
            with other, pytest.raises(DeliveryFailed, match="too many connections"):
                delivery.flush()
            delivery.close()
            assert self.read_results() == {"a": 1}
            assert notes["deliver.database_writes"] == 1
            assert notes["deliver.database_full_microseconds"] > 0
            assert notes["deliver.database_connect_microseconds"] == 0
            connection.execute("drop table scores")
            connection.execute("drop owned by guest")
            connection.execute("drop role guest")

    def test_a_database_that_cannot_store_every_text_is_refused(self, postgres: str, make_delivery: Any) -> None:
        """One result in another script would hold up all others."""
        with psycopg.connect(host=postgres, user="tester", dbname="postgres", autocommit=True) as connection:
            connection.execute("create database latin template template0 encoding 'LATIN1' locale 'C'")
        delivery = parse_results(f"postgresql:///latin?host={postgres}&user=tester&table=scores")
        try:
            with pytest.raises(SettingsError, match="its encoding is LATIN1"):
                delivery.open(None)
        finally:
            delivery.close()


@pytest.mark.parametrize(
    "address",
    ["postgresql://me:p@ss/word@h/x", "postgresql://me:pa/ss@h/x", "postgresql://me:sekret@h:bad/x"],
)
def test_no_part_of_a_password_is_shown(address: str) -> None:
    """However the address was broken."""
    with pytest.raises(SettingsError) as refused:
        parse_results(address)
    assert not any(part in str(refused.value) for part in ("p@ss", "word@", "pa/ss", "ss@", "sekret"))


@pytest.mark.parametrize("address", ["sqlite:///:memory:?table=t", "sqlite:///r.db?TABLE=x", "sqlite:///r.db?mode=ro"])
def test_settings_that_sqlite_would_ignore_are_refused(address: str) -> None:
    """What is in memory would be gone with the run."""
    with pytest.raises(SettingsError, match="for SQLite expected"):
        parse_results(address)


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    """Before the first job."""
    delivery = parse_results(f"postgresql://me:secret-word@/db?host={tmp_path}&table=scores")
    with pytest.raises(SettingsError, match="results cannot be kept in") as refused:
        delivery.open(None)
    assert "secret-word" not in str(refused.value)
