"""A running front, and clients that send bytes as they are."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.serve.http.front import Front
from headrace.serve.http.limits import Limits
from headrace.serve.http.request import Answer, Request
from headrace.serve.http.routes import Routes


class Later:
    """A handler that keeps requests until somebody answers them."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.gone: list[Request] = []
        self._came = threading.Semaphore(0)
        self._went = threading.Semaphore(0)

    def handle(self, request: Request) -> None:
        """Keep it."""
        request.call_when_gone(lambda: self._note_gone(request))
        self.requests.append(request)
        self._came.release()

    def _note_gone(self, request: Request) -> None:
        self.gone.append(request)
        self._went.release()

    def wait(self, count: int = 1) -> Request:
        """Wait for so many requests more; return the last."""
        for _ in range(count):
            assert self._came.acquire(timeout=60)
        return self.requests[-1]

    def wait_gone(self, count: int = 1) -> None:
        """Wait until the clients of so many more are gone."""
        for _ in range(count):
            assert self._went.acquire(timeout=60)


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Raw:
    """A client that sends bytes as they are."""

    def __init__(self, address: tuple[str, int], receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(60)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> "Raw":
        """Send all of it."""
        self.socket.sendall(data)
        return self

    def read(self, *, has_body: bool = True) -> Reply:
        """Return the next answer."""
        line = self._file.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        headers = {}
        while (header := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", "0")) if has_body else 0
        return Reply(int(line.split()[1]), headers, self._file.read(length))

    def is_closed(self) -> bool:
        """Wait for the server's end; False if it sends something else first."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def reset(self) -> None:
        """Vanish, as a process does that is killed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close."""
        self._file.close()
        self.socket.close()


Serve = Callable[..., Front]
Connect = Callable[..., Raw]


@pytest.fixture
def later() -> Later:
    """Return who answers `/later`."""
    return Later()


@pytest.fixture
def routes(later: Later) -> Routes:
    """Return what the fronts of these tests serve."""
    routes = Routes()
    routes.add("POST", "/echo", lambda request: Answer(200, bytes(request.body), "application/octet-stream"))
    routes.add("GET", "/name/{name}", lambda request, name: Answer(200, name.encode(), "text/plain"))
    routes.add("GET", "/fails", lambda request: 1 / 0)
    routes.add("GET", "/livez", lambda request: Answer(200))
    routes.add("POST", "/later", later.handle)
    routes.add("POST", "/full", later.handle, gate=lambda request: Answer(429, b"{}", headers=(("Retry-After", "2"),)))
    return routes


@pytest.fixture
def serve(routes: Routes) -> Iterator[Serve]:
    """Give what starts fronts."""
    with contextlib.ExitStack() as stack:

        def start(limits: Limits | None = None, **options: Any) -> Front:
            front = Front(routes, limits=limits, **options)
            front.start()
            stack.callback(front.close)
            return front

        yield start


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Give what connects clients."""
    with contextlib.ExitStack() as stack:

        def connect(front: Front, **options: Any) -> Raw:
            client = Raw(front.address, **options)
            stack.callback(client.close)
            return client

        yield connect
