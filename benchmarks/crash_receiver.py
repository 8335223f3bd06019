"""A receiver of callbacks that notes each delivery with its idempotency key, in a process of its own.

POST /cb?...          answers 200; with `fail=S` in the address a share S of the jobs gets one 503 first
GET  /num             how many deliveries were answered with 200, as text
GET  /deliveries      {job's id: [idempotency key of each delivery]}
"""

import asyncio
import contextlib
import json
import sys
import urllib.request
import zlib
from collections import defaultdict
from subprocess import PIPE, Popen

from benchmarks.paths import ROOT


class Receiver:
    """Runs the receiver for the length of a `with` block.

    Args:
        fail: Share of the jobs whose first delivery is answered with 503.
    """

    def __init__(self, fail: float = 0.0) -> None:
        self._fail = fail

    def __enter__(self) -> "Receiver":
        command = [sys.executable, "-m", "benchmarks.crash_receiver", str(self._fail)]
        self._process = Popen(command, cwd=ROOT, stdout=PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def num_deliveries(self) -> int:
        """Return how many deliveries came so far."""
        return int(self._get("/num"))

    def deliveries(self) -> dict[str, list[str]]:
        """Return the idempotency keys of all deliveries of each job, by its id."""
        return json.loads(self._get("/deliveries"))

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return response.read()


class _Connection(asyncio.Protocol):
    def __init__(self, state: "_State") -> None:
        self._state = state
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            stop = end + 4 + int(headers.get("content-length", 0))
            if len(self._buffer) < stop:
                return
            body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
            self._transport.write(self._state.answer(first.split(" ")[1], headers, body))


class _State:
    def __init__(self, fail: float) -> None:
        self._fail = fail
        self._failed: set[str] = set()
        self._keys: defaultdict[str, list[str]] = defaultdict(list)
        self._num = 0

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> bytes:
        if path == "/num":
            return _response("200 OK", str(self._num).encode())
        if path == "/deliveries":
            return _response("200 OK", json.dumps(self._keys).encode())
        job = json.loads(body)["id"]
        if zlib.crc32(job.encode()) % 10_000 < self._fail * 10_000 and job not in self._failed:
            self._failed.add(job)
            return _response("503 Service Unavailable", b"")
        self._num += 1
        self._keys[job].append(headers.get("webhook-id") or headers.get("idempotency-key", ""))
        return _response("200 OK", b"{}")


def _response(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _serve(fail: float) -> None:
    state = _State(fail)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(state), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(float(sys.argv[1])))
