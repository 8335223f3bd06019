"""The service mounted in an application of the user's own, under a real ASGI server."""

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import headrace as hr
from headrace.serve.asgi import App
from headrace.serve.http.limits import Limits

LIMIT = 100_000


class Lengths(hr.Module):
    """Returns how long an item is, some of them late."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.may_go = threading.Event()

    def __deepcopy__(self, memo: object) -> "Lengths":
        """Stay the same in each worker, so that the test sees what came."""
        return self

    def process(self, batch: list[bytes]) -> list[int]:
        """Return lengths."""
        self.seen += [bytes(one) for one in batch]
        if b"wait" in batch:
            assert self.may_go.wait(60)
        if b"fail" in batch:
            raise ValueError("not this one")
        return [len(one) for one in batch]


class Server:
    """An application with a route of its own, and the pipeline below /images."""

    def __init__(self) -> None:
        self.module = Lengths()
        app = App(hr.Pipeline(hr.items([]), module=self.module), limits=Limits(body_bytes=LIMIT))
        own = Starlette(
            routes=[Route("/own", lambda request: PlainTextResponse("mine")), Mount("/images", app)],
            lifespan=lambda _: app.running(),
        )
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(own, log_level="warning", ws="none"))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve([self.listening])))
        self.thread.start()

    def ask(self, target: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + target, body, headers), timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def end(self) -> None:
        """Stop it."""
        self.module.may_go.set()
        self.server.should_exit = True
        self.thread.join(60)
        self.listening.close()
        assert not self.thread.is_alive()


@pytest.fixture
def server() -> Iterator[Server]:
    """It, ready to answer."""
    server = Server()
    until = time.monotonic() + 60
    while server.ask("/images/readyz")[0] != 200:
        assert time.monotonic() < until
        time.sleep(0.02)
    yield server
    server.end()


def test_the_pipeline_answers_beside_own_routes(server: Server) -> None:
    """Results, errors and unknown paths come back as from `headrace serve`."""
    assert server.ask("/own") == (200, b"mine")
    status, body = server.ask("/images/v1/jobs?id=a", b"12345")
    assert (status, json.loads(body)) == (200, {"id": "a", "result": 5})
    status, body = server.ask("/images/v1/jobs", b"fail")
    assert (status, json.loads(body)["code"]) == (500, "serve.failed")
    assert server.ask("/images/v1/nothing")[0] == 404
    status, body = server.ask("/images/v1/jobs", b"x" * (LIMIT + 1))
    assert (status, json.loads(body)["code"]) == (413, "http.body_size")
    assert server.ask("/images/v1/jobs?wait=10ms&id=slow", b"wait")[0] == 202


def test_a_client_that_leaves_cancels_its_job(server: Server) -> None:
    """A job that waits behind another never reaches the device once its client is gone."""
    first = threading.Thread(target=server.ask, args=("/images/v1/jobs", b"wait"))
    first.start()
    until = time.monotonic() + 60
    while b"wait" not in server.module.seen:
        assert time.monotonic() < until
        time.sleep(0.01)
    with socket.create_connection(server.listening.getsockname()) as client:
        client.sendall(b"POST /images/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\ngone")
        time.sleep(0.2)  # the job is in the queue by now; if it is not, it is refused all the same
    assert server.ask("/own")[0] == 200
    time.sleep(0.2)
    server.module.may_go.set()
    first.join(60)
    assert json.loads(server.ask("/images/v1/jobs", b"12345")[1])["result"] == 5
    assert b"gone" not in server.module.seen
