"""An HTTP server on the loopback interface that does what a test tells it, and remembers what it was asked."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import hypothesis
import pytest

from headrace.base.calls import Call
from headrace.base.carrier import Carrier
from headrace.base.deadline import seconds_left
from headrace.base.http_answer import Response
from headrace.base.http_client import HttpClient

# Speed is not what these tests look at, and a busy machine would break hypothesis's deadline.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")


class CarriedClient(HttpClient):
    """A client whose requests one thread carries: this one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._carrier = Carrier()

    def get(self, url: str) -> Response:
        """Carry a GET to its end."""
        return self._carry(self.getting(url))

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Carry a POST to its end."""
        return self._carry(self.posting(url, body, headers))

    def close(self) -> None:
        """Close the connections."""
        self._carrier.close()
        super().close()

    def _carry(self, call: Call[Response]) -> Response:
        left = seconds_left()
        self._carrier.begin(call, "request", None if left is None else time.monotonic_ns() + int(left * 1e9))
        while not (ended := self._carrier.wait(60.0)):
            pass
        if ended[0].error is not None:
            raise ended[0].error
        return cast("Response", ended[0].value)


@pytest.fixture(params=[HttpClient, CarriedClient], ids=["waiting", "carried"])
def client_type(request: pytest.FixtureRequest) -> type[HttpClient]:
    """Both ways to wait for a request: in a thread of its own, and in one thread for all."""
    kind: type[HttpClient] = request.param
    return kind


@dataclass(frozen=True)
class Request:
    """What the server was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]
    """The client's address: the same for requests on one connection."""


class Server(ThreadingHTTPServer):
    """Answers by `routes`: path (without query) -> function of the handler."""

    daemon_threads = False  # joined at the end, so that no thread and no socket outlives its test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self.routes: dict[str, Callable[[_Handler], None]] = {}
        self.over = threading.Event()
        self._connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Address of the server, without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and keep it for `stop`."""
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up in the middle: some tests are about that."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """End every answer and close every connection."""
        self.over.set()
        self.shutdown()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.server.requests.append(
            Request(self.command, self.path, dict(self.headers), self.rfile.read(length), self.client_address)
        )
        self.server.routes[self.path.partition("?")[0]](self)

    do_POST = do_GET  # noqa: N815 - the base class names it so

    def answer(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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
    server.stop()
    thread.join()
