"""Real servers on free ports of the loopback interface; without them, tests skip here and fail in CI."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, and CI must not skip")
    pytest.skip(f"{what} is not installed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _started(command: list[str], port: int, log: Path) -> subprocess.Popen[bytes]:
    """Return the server's process once it takes connections."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return process
    process.kill()
    process.wait()
    pytest.fail(f"{command[0]} did not start: {log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start redis-server and return its address."""
    pytest.importorskip("redis") if not os.environ.get("CI") else None
    program = shutil.which("redis-server")
    if program is None:
        _missing("redis-server")
    folder = tmp_path_factory.mktemp("redis")
    port = _free_port()
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = _started(command, port, folder / "log")
    yield f"redis://127.0.0.1:{port}/0"
    _stop(process)


@pytest.fixture
def start_redis(redis_server: str, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Return what starts another redis-server with settings and returns its port."""
    processes = []

    def start(*settings: str) -> int:
        while (port := _free_port()) > 55_000:  # the bus of a cluster listens 10,000 above
            pass
        folder = tmp_path / str(port)
        folder.mkdir()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        processes.append(_started([*command, *settings], port, folder / "log"))
        return port

    yield start
    for process in processes:
        _stop(process)


@pytest.fixture(scope="session")
def sqs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a moto server and return its endpoint."""
    program = Path(sys.executable).with_name("moto_server")
    if not program.exists():
        _missing("moto_server")
    port = _free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    process = _started([str(program), "-H", "127.0.0.1", "-p", str(port)], port, log)
    yield f"http://127.0.0.1:{port}"
    _stop(process)
