"""The program: an HTTP server that serves images and takes results, as slow and as awkward as it is told.

Binds to loopback only. It reads its settings and images from its standard input, says its port, and ends when that input is
closed, so it cannot outlive the one who started it. It is run by path and needs nothing of headrace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import threading
import time

import msgspec

_MOST_HEAD_BYTES = 16 * 1024
_CHUNK_BYTES = 16 * 1024
_SAVED_SECONDS = 0.02


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the server behaves."""

    latency_seconds: float = 0.0
    """Before each image is answered."""
    bytes_per_second: float | None = None
    """Of all images together, as through one link; None: no limit."""
    requests_per_second: float | None = None
    """Images that are answered in a second, at even steps and in the order of asking; None: no limit."""
    slow_share: float = 0.0
    """Share of images, 0 to 1, evenly spread, that take `slow_seconds` instead."""
    slow_seconds: float = 0.0
    keep_alive: bool = True
    """Whether a connection may carry a second request after an image; after a posted result it always may."""
    setup_seconds: float = 0.0
    """Before a new connection is served: what round trips cost that loopback does not have."""
    certificate: str | None = None
    """File with key and certificate; with it, the server speaks TLS."""
    callback_seconds: float = 0.0
    """Before a posted result is answered."""
    callback_failures: float = 0.0
    """Share of posted results, 0 to 1, evenly spread, that are answered with `failure_status`."""
    failure_status: int = 503


class Start(msgspec.Struct, frozen=True):
    """What the program is told."""

    settings: ServerSettings
    images: list[bytes]


class _Spread:
    """Says yes to a share of what it is asked, evenly spread."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._sum = 0.0

    def next(self) -> bool:
        self._sum += self._share
        if self._sum < 1.0:
            return False
        self._sum -= 1.0
        return True


class _Exchange:
    """What the connections share."""

    def __init__(self, start: Start) -> None:
        self._settings = start.settings
        self._images = start.images
        self._slow = _Spread(start.settings.slow_share)
        self._failing = _Spread(start.settings.callback_failures)
        self._next_answer_at = 0.0
        self._link_free_at = 0.0
        self._tls: ssl.SSLContext | None = None
        if start.settings.certificate is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(start.settings.certificate)

    async def accept(self, connection: socket.socket) -> None:
        """Set up one connection: only after some time it is read from, and TLS agreed on."""
        # asyncio does so itself only where it knows the socket's protocol; without, small answers wait 40 ms for an ACK.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.sleep(self._settings.setup_seconds)
        reader = asyncio.StreamReader(limit=_MOST_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader, self.serve)
        with contextlib.suppress(OSError):  # the client did not wait, or does not like the certificate
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it closes."""
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ssl.SSLError, ValueError):
            pass  # the client is gone, or spoke no HTTP
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, and return whether the connection may carry another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path = head.split(" ", 2)[:2]
        await reader.readexactly(_content_length(head))
        status, body = await (self._take() if method == "POST" else self._image(path))
        stays = self._settings.keep_alive or method == "POST"
        ending = "" if stays else "Connection: close\r\n"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{ending}\r\n".encode())
        if method == "POST" or self._settings.bytes_per_second is None:
            writer.write(body)
        else:
            await self._through_link(writer, body, self._settings.bytes_per_second)
        await writer.drain()
        return stays

    async def _take(self) -> tuple[str, bytes]:
        await asyncio.sleep(self._settings.callback_seconds)
        if self._failing.next():
            return f"{self._settings.failure_status} Failed", b""
        return "200 OK", b"{}"

    async def _image(self, path: str) -> tuple[str, bytes]:
        if self._settings.requests_per_second is not None:
            self._next_answer_at = max(self._next_answer_at, time.monotonic()) + 1 / self._settings.requests_per_second
            await asyncio.sleep(self._next_answer_at - time.monotonic())
        await asyncio.sleep(self._settings.slow_seconds if self._slow.next() else self._settings.latency_seconds)
        try:
            return "200 OK", self._images[int(path.rpartition("/")[2])]
        except (ValueError, IndexError):
            return "404 Not Found", b""

    async def _through_link(self, writer: asyncio.StreamWriter, body: bytes, bytes_per_second: float) -> None:
        # In pieces, so that connections share the link as packets would.
        for start in range(0, len(body), _CHUNK_BYTES):
            piece = body[start : start + _CHUNK_BYTES]
            # A link that was idle has saved up a little: what the event loop is late by is not lost.
            idle_since = max(self._link_free_at, time.monotonic() - _SAVED_SECONDS)
            self._link_free_at = idle_since + len(piece) / bytes_per_second
            await asyncio.sleep(max(0.0, self._link_free_at - time.monotonic()))
            writer.write(piece)


def _content_length(head: str) -> int:
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0


async def _serve(start: Start) -> None:
    exchange, loop = _Exchange(start), asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setblocking(False)
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_input, daemon=True).start()
    greeted: set[asyncio.Task[None]] = set()  # the loop itself keeps tasks only weakly
    while True:
        connection, _ = await loop.sock_accept(listening)
        task = loop.create_task(exchange.accept(connection))
        greeted.add(task)
        task.add_done_callback(greeted.discard)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # connections may be open; there is nothing worth waiting for


def _do_not_wait_for_cores() -> None:
    """Come before what shares this machine, where that is allowed: a server elsewhere does not slow down with its clients."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))


def _main() -> None:
    _do_not_wait_for_cores()
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    asyncio.run(_serve(msgspec.msgpack.decode(sys.stdin.buffer.read(size), type=Start)))


if __name__ == "__main__":
    _main()
