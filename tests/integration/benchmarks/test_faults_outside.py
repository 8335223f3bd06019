"""What faults need around a pipeline: an image server as awkward as it is told, programs that are nobody's children."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from benchmarks.faults import FAULTS, environment_faults, outside
from benchmarks.faults.image_server import ServerSettings
from benchmarks.faults.outside import OutsideProgram, busy_programs
from benchmarks.faults.server import Server, make_certificate
from headrace.pipeline.thread_budget import usable_cores

IMAGES = [b"first" * 1000, b"second" * 20_000]


@contextmanager
def connected(**settings: object) -> Iterator[tuple[http.client.HTTPConnection, Server]]:
    """Return a connection to a server that behaves so, and the server."""
    with Server(ServerSettings(**settings), IMAGES) as server:  # type: ignore[arg-type]
        connection = http.client.HTTPConnection(str(urlsplit(server.url).netloc), timeout=30)
        try:
            yield connection, server
        finally:
            connection.close()


def get(connection: http.client.HTTPConnection, path: str = "/images/0") -> tuple[bytes, str | None]:
    """Return the body, and whether the connection is to be closed."""
    connection.request("GET", path)
    response = connection.getresponse()
    return response.read(), response.getheader("Connection")


def post(connection: http.client.HTTPConnection) -> int:
    """Return the status of the answer to a posted result."""
    connection.request("POST", "/results", b"{}")
    response = connection.getresponse()
    response.read()
    return response.status


def seconds_of_gets(number: int, **settings: object) -> float:
    """Return how long some downloads of the first image take, one after the other."""
    with connected(**settings) as (connection, _):
        started = time.monotonic()
        for _ in range(number):
            get(connection)
        return time.monotonic() - started


def test_images_and_results_pass() -> None:
    """Each image at its address, other addresses are not found, and results are taken, on one connection."""
    with connected() as (connection, server):
        paths = [urlsplit(url).path for url in server.image_urls()]
        assert [get(connection, path)[0] for path in paths] == IMAGES
        connection.request("GET", "/images/2")
        response = connection.getresponse()
        response.read()
        assert response.status == 404
        assert post(connection) == 200
        assert get(connection) == (IMAGES[0], None)


def test_an_image_takes_its_latency() -> None:
    """Four of 50 ms take at least 200 ms."""
    assert seconds_of_gets(4, latency_seconds=0.05) >= 0.2


def test_some_images_are_slow() -> None:
    """Half of four take 150 ms each."""
    assert seconds_of_gets(4, slow_share=0.5, slow_seconds=0.15) >= 0.3


def test_a_link_lets_no_more_pass() -> None:
    """Two images of 120 kB through 400 kB/s take 0.6 s, but for the little that an idle link has saved up."""
    with connected(bytes_per_second=400_000.0) as (connection, _):
        started = time.monotonic()
        assert [get(connection, "/images/1")[0] for _ in range(2)] == [IMAGES[1]] * 2
        assert time.monotonic() - started >= 0.55


def test_a_link_is_shared_by_connections() -> None:
    """Two connections at a time get no more than one."""
    with connected(bytes_per_second=400_000.0) as (one, server):
        other = http.client.HTTPConnection(str(urlsplit(server.url).netloc), timeout=30)
        started = time.monotonic()
        for connection in (one, other):
            connection.request("GET", "/images/1")
        for connection in (one, other):
            connection.getresponse().read()
        other.close()
        assert time.monotonic() - started >= 0.55


def test_a_connection_may_carry_one_image_only() -> None:
    """The server says so, and each connection takes its setting up."""
    with connected(keep_alive=False, setup_seconds=0.1) as (connection, _):
        started = time.monotonic()
        assert [get(connection)[1] for _ in range(3)] == ["close"] * 3
        assert time.monotonic() - started >= 0.3


def test_posted_results_keep_their_connection() -> None:
    """Also where images do not: the second post needs no new one."""
    with connected(keep_alive=False) as (connection, _):
        assert post(connection) == 200
        socket = connection.sock
        assert post(connection) == 200
        assert connection.sock is socket


def test_tls_is_agreed_on_after_setting_up() -> None:
    """A client that trusts the certificate gets its image."""
    certificate = make_certificate()
    if certificate is None:
        pytest.skip("openssl is not installed")
    settings = ServerSettings(certificate=certificate, setup_seconds=0.05)
    with Server(settings, IMAGES) as server:
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection(str(urlsplit(server.url).netloc), timeout=30, context=context)
        assert server.url.startswith("https:")
        assert get(connection)[0] == IMAGES[0]
        connection.close()


def test_some_results_are_refused() -> None:
    """Every second one is answered with 503."""
    with connected(callback_failures=0.5) as (connection, _):
        assert [post(connection) for _ in range(4)] == [200, 503, 200, 503]


@pytest.mark.measures
def test_programs_outside_are_no_children_and_end() -> None:
    """Two busy programs, none of which this process has for a descendant; none is left afterwards."""

    def running() -> set[int]:
        return {one.pid for one in psutil.process_iter() if outside._BUSY in _command(one)}

    before = running()
    with busy_programs(2):
        new = running() - before
        assert len(new) == 2
        assert new.isdisjoint(one.pid for one in psutil.Process().children(recursive=True))
    assert running() <= before


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_program_that_ends_at_once_is_told() -> None:
    """Without its first line there is nothing to wait for."""
    with pytest.raises(RuntimeError, match="ended before it was ready"), OutsideProgram("-c", "pass"):
        pass


def test_a_program_ends_with_the_one_who_started_it(tmp_path: Path) -> None:
    """When that is killed, the pipe closes."""
    file = tmp_path / "pid"
    program = f"import os, sys; open({str(file)!r}, 'w').write(str(os.getpid())); print(flush=True); sys.stdin.read()"
    parent = f"""
import os, signal
from benchmarks.faults.outside import OutsideProgram
with OutsideProgram("-c", {program!r}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", parent], check=False)
    ends = time.monotonic() + 30
    while psutil.pid_exists(int(file.read_text())) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not psutil.pid_exists(int(file.read_text()))


def test_a_quota_holds_within_its_block() -> None:
    """The process is in a group of its own, and so is what it starts; elsewhere the fault says what it needs."""
    if FAULTS["F14"].inject is None:
        assert "control group" in FAULTS["F14"].needs
        with pytest.raises(OSError, match="may be made"), environment_faults.cpu_quota(0.5):
            pass
        return
    group = f"/headrace-{os.getpid()}\n"
    with environment_faults.cpu_quota(usable_cores() / 2):
        assert group in Path("/proc/self/cgroup").read_text()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert group not in Path("/proc/self/cgroup").read_text()
    assert group not in Path(f"/proc/{child.pid}/cgroup").read_text()
    child.communicate(b"\n")
