"""A receiver of callbacks on the loopback interface, which answers as it is told and remembers what it was told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from headrace.delivery.signing import Verifier


@dataclass(frozen=True, slots=True)
class Call:
    """One POST."""

    number: int
    """From 1."""
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def id(self) -> str:
        """The key to deduplicate by."""
        return self.headers["webhook-id"]

    @property
    def result(self) -> Any:
        """What was worked out."""
        return json.loads(self.body)["result"]


@dataclass(frozen=True, slots=True)
class Reply:
    """How to answer."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    hang: bool = False
    """Say nothing, until the receiver is closed."""


class Receiver:
    """Listens for the length of a `with` block.

    Args:
        reply: How to answer a call; always 200 by default.
        secrets: Verify every call with these, and answer 401 to what they did not sign; none: verify nothing.

    Attributes:
        calls: All calls, in order, those refused included.
        taken: {id: result} of the calls that were answered with 2xx: what a receiver that deduplicates has.
        num_duplicates: Calls that were answered with 2xx and whose id was known.
    """

    def __init__(self, reply: Callable[[Call], Reply] | None = None, *, secrets: tuple[str, ...] = ()) -> None:
        self.reply = reply or (lambda call: Reply())
        self.calls: list[Call] = []
        self.taken: dict[str, Any] = {}
        self.num_duplicates = 0
        self.closing = threading.Event()
        self._verifier = Verifier(*secrets) if secrets else None
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="receiver", daemon=True)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/results"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()  # waits for the threads of its connections
        self._thread.join()

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Note a call and return how to answer it."""
        with self._lock:
            call = Call(len(self.calls) + 1, path, headers, body)
            self.calls.append(call)
        if self._verifier is not None:
            try:
                self._verifier.verify(headers, body)
            except ValueError:
                return Reply(401)
        reply = self.reply(call)
        if 200 <= reply.status < 300 and not reply.hang:
            with self._lock:
                self.num_duplicates += call.id in self.taken
                self.taken.setdefault(call.id, call.result)
        return reply


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.receiver = receiver
        self._connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may hang up whenever they like."""

    def hang_up(self) -> None:
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver = self.server.receiver
        reply = receiver.answer(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        if reply.hang:
            receiver.closing.wait()
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in ({"Content-Length": str(len(reply.body))} | dict(reply.headers)).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Stay silent."""
