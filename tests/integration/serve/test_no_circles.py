"""Requests are freed when they are answered: circles would keep their bodies until the garbage collector stops everybody."""

import gc
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.serve.service import ServeSettings, serve

_OIP = json.dumps({"inputs": [{"name": "input", "datatype": "BYTES", "shape": [1], "data": ["abc"]}]}).encode()
_COUNT = 20


class Lengths(hr.Module):
    """Returns how long each item is; one that is `bad` is refused."""

    input = hr.BytesInput()

    def process(self, batch: list[bytes]) -> list[int]:
        """Return lengths."""
        if b"bad" in batch:
            raise ValueError("bad")
        return [len(one) for one in batch]


@pytest.fixture
def port() -> Iterator[int]:
    """Where a service of this process listens, all of whose garbage is kept."""
    stop, told = threading.Event(), []
    opened = threading.Event()

    def tell(address: str) -> None:
        told.append(address)
        opened.set()

    pipeline = hr.Pipeline(hr.items([]), module=Lengths())
    settings = ServeSettings(port=0, probes={"": b"abc"})
    thread = threading.Thread(target=lambda: serve(pipeline, None, settings, tell=tell, stop=stop))
    thread.start()
    assert opened.wait(60)
    yield int(told[0].rpartition(":")[2])
    stop.set()
    thread.join(60)


def _ask(port: int, method: str, target: str, body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, target, body)
    status = connection.getresponse().status
    connection.close()
    return status


def _leave(port: int) -> None:
    """Go away before the answer."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")


def test_no_request_is_left_to_the_garbage_collector(port: int) -> None:
    """Neither what is answered, nor what fails, nor what is taken later, nor what nobody waits for."""
    while _ask(port, "GET", "/readyz") != 200:
        pass
    _ask(port, "POST", "/v2/models/lengths/infer", _OIP)  # imports what they need
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        statuses = Counter(_ask(port, "POST", "/v1/jobs", b"abc") for _ in range(_COUNT))
        statuses.update(_ask(port, "POST", "/v1/jobs", b"bad") for _ in range(_COUNT))
        statuses.update(_ask(port, "POST", "/v1/jobs?wait=0s", b"abc") for _ in range(_COUNT))
        statuses.update(_ask(port, "POST", "/v2/models/lengths/infer", _OIP) for _ in range(_COUNT))
        for _ in range(_COUNT):
            _leave(port)
        assert _ask(port, "POST", "/v1/jobs", b"abc") == 200
        gc.collect()
        left = Counter(type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("headrace"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert statuses[200] >= _COUNT, statuses
    assert not {name: count for name, count in left.items() if count >= _COUNT}, left
