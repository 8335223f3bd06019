"""Photographs, contexts and a small HTTP server."""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from PIL import Image

import headrace
from headrace.base.network_rules import NetworkPlan
from headrace.base.plan import DecodePlan, Plan
from headrace.stages.images import slot
from headrace.stages.stage import Stage, StageContext

# Speed is not what these tests look at, and a busy machine would break hypothesis's deadline.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")

PHOTOGRAPHS = sorted((Path(headrace.__file__).parent / "samples" / "photographs").glob("*.jpg"))


@pytest.fixture(params=PHOTOGRAPHS, ids=lambda path: path.stem)
def photograph(request: pytest.FixtureRequest) -> bytes:
    """Each real photograph that comes with the package, as its file's bytes."""
    data: bytes = request.param.read_bytes()
    return data


@pytest.fixture(scope="session")
def photographs() -> dict[str, bytes]:
    """All real photographs, by name."""
    return {path.stem: path.read_bytes() for path in PHOTOGRAPHS}


@pytest.fixture(scope="session")
def picture(photographs: dict[str, bytes]) -> Image.Image:
    """A small colour picture, wider than high, for the formats that photographs are not in."""
    return Image.open(io.BytesIO(photographs["coffee"])).convert("RGB").resize((192, 128))


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """Makes files of images."""

    def encode(image: Image.Image, format: str, **settings: Any) -> bytes:  # noqa: A002 - as Pillow names it
        file = io.BytesIO()
        image.save(file, format, **settings)
        return file.getvalue()

    return encode


@pytest.fixture
def make_context() -> Callable[..., StageContext]:
    """Makes what a worker tells a stage when it opens it."""

    def make(
        *,
        options: dict[str, Any] | None = None,
        decode: DecodePlan | None = None,
        network: NetworkPlan | None = None,
        next_stage: Stage | None = None,
        open_model: Any = None,
    ) -> StageContext:
        plan = Plan(decode=decode or DecodePlan(), network=network or NetworkPlan(allow=["127.0.0.1"]))
        return StageContext("stage", 0, plan, options or {}, next_stage, open_model)

    return make


@pytest.fixture(autouse=True)
def _free_slot() -> Iterator[None]:
    """No test finds the place that another has reserved."""
    yield
    slot.array = None


class Server(ThreadingHTTPServer):
    """Answers each path with a status and a body."""

    daemon_threads = False  # joined at the end, so that no thread and no socket outlives its test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and keep it to close it at the end."""
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up in the middle: some tests are about that."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        status, body = self.server.answers.get(self.path.partition("?")[0], (404, b"no such image"))
        self.send_response(status)
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
    server.shutdown()
    for connection in server.connections:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
    server.server_close()
    thread.join()
