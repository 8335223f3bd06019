"""Results in a table of a PostgreSQL server, which the tests start themselves."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import SettingsError
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
    subprocess.run([programs[-1], "-D", data, "-U", "tester", "-A", "trust", "--no-sync"], check=True, **as_user)
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


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    """Before the first job."""
    delivery = parse_results(f"postgresql://me:secret-word@/db?host={tmp_path}&table=scores")
    with pytest.raises(SettingsError, match="results cannot be kept in") as refused:
        delivery.open(None)
    assert "secret-word" not in str(refused.value)
