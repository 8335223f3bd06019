"""A server that is called back."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.network_rules import NetworkPlan
from headrace.base.plan import Plan


@dataclass(frozen=True)
class Call:
    """What the server was told."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]
    """The client's address: the same for calls on one connection."""


class Server(ThreadingHTTPServer):
    """Takes every POST, and answers with `status`."""

    daemon_threads = False  # joined at the end, so that no thread and no socket outlives its test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.status = 200
        self.calls: list[Call] = []
        self.connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and keep it to close it at the end."""
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append(Call(self.path, dict(self.headers), body, self.client_address))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that runs as long as the test."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    for connection in server.connections:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
    server.server_close()
    thread.join()


@pytest.fixture
def context() -> SimpleNamespace:
    """What a delivery is opened with: a Plan without options, and counters."""
    counts: Counter[str] = Counter()
    plan = Plan(network=NetworkPlan(allow=["127.0.0.1"]))
    return SimpleNamespace(
        options={}, plan=plan, counts=counts, count=lambda name, number: counts.update({name: number})
    )
