"""The sources for RabbitMQ and Kafka under `examples/brokers`: their own tests, with a RabbitMQ server of Debian's."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

BROKERS = Path(__file__).parents[3] / "examples" / "brokers"
#: Where Debian has the server's own script: the one in /usr/sbin would change to another user.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder of its own, with nothing from the network."""
    folder = tmp_path_factory.mktemp("brokers")
    shutil.copytree(BROKERS, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--target", str(folder / "installed"), str(folder / "source")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a RabbitMQ server with a folder and ports of its own, and return its address."""
    if not SERVER.is_file():
        if os.environ.get("CI"):
            pytest.fail("there is no RabbitMQ server: apt-get install rabbitmq-server")
        pytest.skip("there is no RabbitMQ server: apt-get install rabbitmq-server")
    folder = tmp_path_factory.mktemp("rabbit")
    port, between, names = (_free_port() for _ in range(3))
    environment = {
        **os.environ, "HOME": str(folder), "RABBITMQ_NODENAME": f"tests{port}@localhost", "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(between), "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder), "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"), "ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1",
    }  # fmt: skip
    # Erlang's list of names, which the server would start as a daemon and leave behind.
    listing = subprocess.Popen(["epmd"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with (folder / "said").open("wb") as said:
        server = subprocess.Popen([SERVER], env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        _wait_for(server, port, folder / "said")
        yield f"amqp://guest:guest@127.0.0.1:{port}/%2f"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        listing.kill()
        listing.wait()


def _wait_for(server: subprocess.Popen[bytes], port: int, said: Path) -> None:
    """Wait until the server greets who connects."""
    until = time.monotonic() + 90
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"AMQP\0\0\x09\x01")
            if connection.recv(1) == b"\x01":
                return
        time.sleep(0.2)
    pytest.fail(f"the RabbitMQ server did not begin: {said.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.mark.parametrize(("file", "fewest"), [("test_rabbit.py", 3), ("test_kafka.py", 5)])
def test_its_own_tests_pass(installed: Path, rabbit: str, file: str, fewest: int) -> None:
    """None of them is skipped."""
    path = os.pathsep.join([str(installed / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-rs", file],
        cwd=installed / "source", env={**os.environ, "PYTHONPATH": path, "RABBITMQ_URL": rabbit}, timeout=240,
        text=True, capture_output=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:]
    assert "skipped" not in found.stdout
    passed = re.search(r"(\d+) passed", found.stdout)
    assert passed is not None
    assert int(passed[1]) >= fewest
