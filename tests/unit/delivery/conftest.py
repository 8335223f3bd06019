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

from headrace.base import calls
from headrace.base.carrier import Carrier
from headrace.base.network_rules import NetworkPlan
from headrace.base.plan import Plan
from headrace.delivery import callback


@pytest.fixture(params=["waiting", "carried"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways to wait for callbacks: in the thread that delivers, and in one that carries the calls of many."""
    if request.param == "waiting":
        yield
        return
    carriers: dict[int, Carrier] = {}

    def carry(call: calls.Call[Any]) -> Any:
        carrier = carriers.setdefault(threading.get_ident(), Carrier())
        carrier.begin(call, "call")
        (ended,) = carrier.wait(None)
        if ended.error is not None:
            raise ended.error
        return ended.value

    monkeypatch.setattr(callback, "run_call", carry)
    yield
    for carrier in carriers.values():
        carrier.close()


@dataclass(frozen=True)
class Call:
    """What the server was told."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]
    """The client's address: the same for calls on one connection."""


class Server(ThreadingHTTPServer):
    """Takes every POST, and answers with `status`, `headers` and `body`, or as `script` says for a path."""

    daemon_threads = False  # joined at the end, so that no thread and no socket outlives its test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b""
        self.script: dict[str, int] = {}
        self.calls: list[Call] = []
        self.connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and keep it to close it at the end."""
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has read enough hangs up, which is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append(Call(self.path, dict(self.headers), body, self.client_address))
        self.send_response(self.server.script.get(self.path, self.server.status))
        self.send_header("Location", "/elsewhere")
        for name, value in {"Content-Length": str(len(self.server.body)), **self.server.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(self.server.body)
        except OSError:  # the client has read enough
            self.close_connection = True

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
        options={}, plan=plan, counts=counts, count=lambda name, number: counts.update({name: number}), shared={}
    )
