"""A local image server with a stated delay, and a callback receiver: the demo's outside world, in a process of its own.

Binds to loopback only. The delay stands for the network; everything else in the demo is real.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.base.signals import ignore_signals, start_sheltered

#: Where they listen, which a Plan has to allow.
LOOPBACK = "127.0.0.1"
_START_SECONDS = 30.0
_MAX_HEAD_BYTES = 16 * 1024


class DemoServers:
    """Runs the servers for the length of a `with` block.

    Args:
        folder: Files to serve at `/images/NAME`.
        delay_seconds: Before each image is answered.
    """

    def __init__(self, folder: Path, delay_seconds: float) -> None:
        self._folder = folder
        self._delay_seconds = delay_seconds
        self._connection: Connection | None = None
        self.url = ""

    def __enter__(self) -> DemoServers:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._folder, self._delay_seconds), daemon=True)
        start_sheltered(process)
        theirs.close()
        if not self._connection.poll(_START_SECONDS):
            raise RuntimeError(f"the demo's servers did not start within {_START_SECONDS:g} s")
        self.url = f"http://{LOOPBACK}:{self._connection.recv()}"
        self._process = process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()  # the process ends when its pipe does
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()

    def image_url(self, name: str) -> str:
        """Return the address of one file."""
        return f"{self.url}/images/{name}"

    @property
    def callback_url(self) -> str:
        """Where results are posted."""
        return f"{self.url}/results"

    def take_results(self) -> list[dict[str, Any]]:
        """Return the bodies posted since the last call, in order."""
        if self._connection is None:
            raise RuntimeError("the servers are not running")
        self._connection.send("take")
        bodies: list[bytes] = self._connection.recv()
        return [json.loads(body) for body in bodies]


class _Exchange:
    """What the connections share."""

    def __init__(self, folder: Path, delay_seconds: float) -> None:
        self.images = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        self.delay_seconds = delay_seconds
        self.results: list[bytes] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it closes."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path = head.split(" ", 2)[:2]
                body = await reader.readexactly(_content_length(head))
                status, answer = await self._reply(method, path, body)
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _reply(self, method: str, path: str, body: bytes) -> tuple[str, bytes]:
        if method == "POST":
            self.results.append(body)
            return "200 OK", b"{}"
        await asyncio.sleep(self.delay_seconds)
        image = self.images.get(path.rpartition("/")[2])
        return ("200 OK", image) if image is not None else ("404 Not Found", b"")


def _content_length(head: str) -> int:
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0


def _serve(connection: Connection, folder: Path, delay_seconds: float) -> None:
    ignore_signals(signal.SIGINT)
    asyncio.run(_serve_until_closed(connection, _Exchange(folder, delay_seconds)))


async def _serve_until_closed(connection: Connection, exchange: _Exchange) -> None:
    server = await asyncio.start_server(exchange.answer, LOOPBACK, 0, limit=_MAX_HEAD_BYTES)
    connection.send(server.sockets[0].getsockname()[1])
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def obey() -> None:
        # A thread, because a pipe has no asyncio interface worth its code.
        try:
            while connection.recv():
                results, exchange.results = exchange.results, []
                connection.send(results)
        except (EOFError, OSError):
            loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=obey, daemon=True).start()
    await closed.wait()
    os._exit(0)  # connections are still open; there is nothing worth waiting for
