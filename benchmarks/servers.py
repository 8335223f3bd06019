"""An image server and a callback server in one process on the loopback, and the context manager that runs it.

    with Servers(corpus.build()) as servers:
        servers.reset(delay_ms=80)
        jobs = servers.jobs(1000)          # [(id, url), ...]; post {"id": id, ...} to servers.callback_url
        ...
        servers.stats()

How this works: one process, one event loop, one protocol object per connection, all bodies in memory. The server shares
the machine with what it measures, so it does as little as possible: no HTTP library, responses prepared beforehand
(0.05 CPU ms per request). It speaks only what the benchmarks need: HTTP/1.1, keep-alive, ``Content-Length`` bodies.

    GET  /img/<i>       image i modulo the corpus, after a lognormal delay (sigma 0.5) of the stated mean
    GET  /payload/<i>   13 KiB of bytes after the same delay, for workloads without images
    POST /cb            counts the id in the JSON body and keeps the body for ``answers``
    GET  /ctl/...       reset, stats, answers; the parent's, not the measured program's

Every reset seeds the delays again: each peer meets the same sequence of delays, in its own order of arrival. The event
loop's timers have a resolution of one millisecond, so a mean of 2.22 ms is only approximately kept.
"""

import asyncio
import contextlib
import json
import math
import random
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paths import ROOT

SIGMA = 0.5
SEED = 3
PAYLOAD_BYTES = 13 * 1024


@dataclass(frozen=True)
class CallbackStats:
    """What the callback server saw since the last reset."""

    num_images: int
    """Images (or payloads) served."""
    num_callbacks: int
    """Callbacks received, repeats included."""
    num_unique: int
    """Different ids among them."""
    num_duplicates: int
    """Callbacks beyond the first of an id."""
    first_callback: float | None
    """Wall time of the first callback, seconds since the epoch; None before any."""
    last_callback: float | None
    """Wall time of the last callback, seconds since the epoch; None before any."""
    steady_rate: float | None
    """Callbacks per second between the tenth and the ninetieth percentile callback; None below 20 callbacks."""
    cpu_seconds: float
    """CPU seconds of the server process since the reset."""


class Servers:
    """Runs the servers as a subprocess for the length of a ``with`` block.

    Args:
        folder: Folder of ``*.jpg`` files to serve; None serves only ``/payload``.
        port: 0 takes a free port.
    """

    def __init__(self, folder: Path | None = None, port: int = 0) -> None:
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> "Servers":
        command = [sys.executable, "-m", "benchmarks.servers", "--port", str(self._port)]
        if self._folder is not None:
            command += ["--corpus", str(self._folder)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the benchmark servers ended with code {self._process.wait()} before listening")
        self.url = f"http://127.0.0.1:{int(line)}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Process id of the servers."""
        return self._process.pid

    @property
    def callback_url(self) -> str:
        """Where answers are posted, as JSON with an ``id``."""
        return f"{self.url}/cb"

    def image_url(self, index: int) -> str:
        """Return the address of one image."""
        return f"{self.url}/img/{index}"

    def payload_url(self, index: int) -> str:
        """Return the address of one small payload."""
        return f"{self.url}/payload/{index}"

    def jobs(self, count: int, payload: bool = False) -> list[tuple[int, str]]:
        """Return ``count`` pairs of id and address."""
        address = self.payload_url if payload else self.image_url
        return [(index, address(index)) for index in range(count)]

    def reset(self, delay_ms: float) -> None:
        """Forget all callbacks and delay images by ``delay_ms`` on average from now on."""
        self._control(f"reset?delay_ms={delay_ms}")

    def stats(self) -> CallbackStats:
        """Return what arrived since the last reset."""
        return CallbackStats(**self._control("stats"))

    def answers(self) -> dict[int, dict[str, object]]:
        """Return the last callback body of each id."""
        return {answer["id"]: answer for answer in self._control("answers")}

    def _control(self, path: str) -> object:
        with urllib.request.urlopen(f"{self.url}/ctl/{path}", timeout=30) as response:
            return json.load(response)


class _State:
    """What the connections share."""

    def __init__(self, folder: str | None) -> None:
        files = sorted(Path(folder).glob("*.jpg")) if folder else []
        self.images = [_response(path.read_bytes(), "image/jpeg") for path in files]
        self.payloads = [_response(bytes([i]) * PAYLOAD_BYTES, "application/octet-stream") for i in range(256)]
        self.reset(0.0)

    def reset(self, delay_seconds: float) -> None:
        self.delay_seconds = delay_seconds
        # The mean of a lognormal variable is exp(mu + sigma^2 / 2).
        self.mu = math.log(delay_seconds) - SIGMA**2 / 2 if delay_seconds > 0 else 0.0
        self.random = random.Random(SEED)
        self.callback_times: list[float] = []
        self.bodies: dict[bytes, bytes] = {}
        self.num_images = 0
        self.cpu_at_reset = time.process_time()

    def stats(self) -> dict[str, float | None]:
        times = self.callback_times
        count, tenth, ninetieth = len(times), len(times) // 10, len(times) * 9 // 10
        return {
            "num_images": self.num_images,
            "num_callbacks": count,
            "num_unique": len(self.bodies),
            "num_duplicates": count - len(self.bodies),
            "first_callback": times[0] if times else None,
            "last_callback": times[-1] if times else None,
            "steady_rate": (ninetieth - tenth) / (times[ninetieth] - times[tenth]) if count >= 20 else None,
            "cpu_seconds": time.process_time() - self.cpu_at_reset,
        }


class _Connection(asyncio.Protocol):
    """Parses requests out of one connection's bytes and answers them."""

    def __init__(self, state: _State) -> None:
        self.state = state
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = 0 if head.startswith(b"GET") else _content_length(head)
            if length < 0:
                self.transport.write(b"HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                self.transport.close()
                return
            stop = end + 4 + length
            if len(self.buffer) < stop:
                return
            body = self.buffer[end + 4 : stop]
            self.buffer = self.buffer[stop:]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        state = self.state
        if path.startswith(b"/cb"):
            state.callback_times.append(time.time())
            state.bodies[_id(body)] = body
            self.transport.write(_ACCEPTED)
        elif path.startswith(b"/img/"):
            self._send_later(state.images[int(path[5:]) % len(state.images)])
        elif path.startswith(b"/payload/"):
            self._send_later(state.payloads[int(path[9:]) % len(state.payloads)])
        else:
            self.transport.write(_json_response(self._control(path.decode())))

    def _send_later(self, response: bytes) -> None:
        state = self.state
        state.num_images += 1
        if state.delay_seconds > 0:
            delay = state.random.lognormvariate(state.mu, SIGMA)
            asyncio.get_running_loop().call_later(delay, self._send, response)
        else:
            self.transport.write(response)

    def _send(self, response: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(response)

    def _control(self, path: str) -> object:
        if path.startswith("/ctl/reset?delay_ms="):
            self.state.reset(float(path.partition("=")[2]) / 1e3)
            return {}
        if path == "/ctl/answers":
            return [json.loads(body) for body in self.state.bodies.values()]
        return self.state.stats()


def _response(body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _json_response(value: object) -> bytes:
    return _response(json.dumps(value).encode(), "application/json")


_ACCEPTED = _json_response({})


def _content_length(head: bytes) -> int:
    """Return the body's length in bytes, -1 if the request does not tell."""
    lower = head.lower()
    start = lower.find(b"content-length:")
    return int(lower[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else -1


def _id(body: bytes) -> bytes:
    """Return the ``id`` field of a flat JSON object; parsing the whole body would cost four times as much."""
    start = body.index(b":", body.index(b'"id"')) + 1
    comma = body.find(b",", start)
    return body[start : comma if comma > 0 else body.index(b"}", start)].strip()


async def _serve(folder: str | None, port: int) -> None:
    state = _State(folder)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(state), "127.0.0.1", port, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    import argparse

    import uvloop

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--corpus")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(arguments.corpus, arguments.port))


if __name__ == "__main__":
    main()
