"""Lets in the clients of a gRPC server of which several processes share a port, and lets them go without losing a call.

How this works: gRPC listens by itself, and takes no socket that somebody else listens on. What it does at its end loses calls:
those that arrive before their client has heard of it are cancelled, and so is who stands in the queue of its socket. So it
listens on a socket of this process's own, which nobody else can open, and a relay carries the bytes of each client to it. The
relay accepts from the socket that all processes share, so that nobody is refused while one of them lives; and it asks a client
to go as HTTP/2 has it (RFC 9113, section 6.8): a frame GOAWAY that names the highest number says that all calls under way are
answered, and that the next ones belong to another connection. Only then, once all have gone, does the server end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from headrace.base.crash_recovery import make_own_folder

logger = logging.getLogger("headrace")

_HEADER_BYTES = 9
_TYPE_BYTE, _GOAWAY_TYPE = 3, 7
#: No call has a higher number than the one it names, and nothing is wrong.
GOAWAY = bytes([0, 0, 8, _GOAWAY_TYPE, 0, 0, 0, 0, 0]) + b"\x7f\xff\xff\xff" + bytes(4)
#: How often a relay that lets clients go looks whether all have.
_LOOK_SECONDS = 0.02
#: Bytes that wait for one side before the other is read no more.
_HELD_BYTES = 256 * 1024
#: Clients that are accepted before others are served again, and how long one may take to begin.
_AT_ONCE, _HANDSHAKE_SECONDS = 64, 30.0
#: How long nobody is accepted where there is no room, or no descriptor: the socket would be ready all the while.
_PAUSE_SECONDS = 0.25


class Frames:
    """Knows where frames of HTTP/2 end in the bytes of one direction.

    Attributes:
        is_between: A frame has ended, and the next one has not begun.
        said_goaway: A frame GOAWAY has begun; another one must not name a higher number.
    """

    def __init__(self) -> None:
        self.is_between = self.said_goaway = False
        self._header = b""
        self._left = 0

    def take(self, data: bytes) -> int | None:
        """Take bytes; return the first place among them at which a frame ends, None where none does."""
        place, first = 0, None
        while place < len(data):
            if self._left:
                step = min(self._left, len(data) - place)
                self._left -= step
            else:
                step = min(_HEADER_BYTES - len(self._header), len(data) - place)
                self._header += data[place : place + step]
            place += step
            self._begin_frame()
            self.is_between = not self._left and not self._header
            if self.is_between and first is None:
                first = place
        return first

    def _begin_frame(self) -> None:
        if len(self._header) == _HEADER_BYTES:
            self._left = int.from_bytes(self._header[:3], "big")
            self.said_goaway = self.said_goaway or self._header[_TYPE_BYTE] == _GOAWAY_TYPE
            self._header = b""


class _Side(asyncio.Protocol):
    """One end of a relayed connection: what it receives is written to the other one."""

    other: _Side | None = None
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_HELD_BYTES)

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self.pass_on(data)

    def pass_on(self, data: bytes) -> None:
        """Write to the other side."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Read no more from the other side until this one has taken what waits."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other side too, once it has what was written."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _ServerSide(_Side):
    """Where the server's frames come from."""

    def __init__(self) -> None:
        self.frames = Frames()
        self._is_to_go = False

    def data_received(self, data: bytes) -> None:
        """Pass it on; where the client is to go, it is told behind the first frame that ends."""
        end = self.frames.take(data)
        if not self._is_to_go or end is None:
            self.pass_on(data)
            return
        self._is_to_go = False
        self.pass_on(data[:end])
        if not self.frames.said_goaway:
            self.pass_on(GOAWAY)
        self.pass_on(data[end:])

    def let_go(self) -> None:
        """Tell the client to make its next calls elsewhere."""
        if self.frames.said_goaway:
            return
        if self.frames.is_between:
            self.pass_on(GOAWAY)
        else:
            self._is_to_go = True


class _ClientSide(_Side):
    """A client, which is read once the server is there."""

    def __init__(self, relay: GrpcRelay) -> None:
        self._relay = relay
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the server."""
        super().connection_made(transport)
        cast(asyncio.Transport, transport).pause_reading()
        self._relay.enter(self)

    def data_received(self, data: bytes) -> None:
        """Pass it on, or keep what came before the server was there."""
        if self.other is None:
            self._early += data
        else:
            self.pass_on(data)

    def join(self, server: _ServerSide) -> None:
        """Begin: the server is there."""
        self.other = server
        early, self._early = self._early, b""
        self.pass_on(early)
        if self.transport is not None:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other side too."""
        self._relay.clients.discard(self)
        super().connection_lost(exc)


class GrpcRelay:
    """See above; used in one loop.

    Args:
        listening: The socket that processes share; it is closed here, in this process alone.
        tls: None: nothing is encrypted.
        most: Clients that may be connected; others wait, or another process lets them in.

    Attributes:
        clients: Those that are connected.
        place: Where the server is to listen, as gRPC names it.
    """

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None = None, most: int = 10_000) -> None:
        self.clients: set[_ClientSide] = set()
        self._most = most
        self._is_short = False
        self._listening = listening
        self._tls = tls
        # Nobody else can enter it; what a process left that was killed is removed by the next.
        self._folder, self._lock = make_own_folder(Path(tempfile.gettempdir()))
        self._path = self._folder / "server"
        self.place = f"unix:{self._path}"
        self._entering: set[asyncio.Task[None]] = set()
        self._is_leaving = False

    def start(self) -> None:
        """Begin to let clients in; the server listens by now."""
        self._listening.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        loop.call_later(_PAUSE_SECONDS, self._resume)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if len(self.clients) + len(self._entering) >= self._most:
                self._pause()
                return
            try:
                client, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):  # another process was first
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._end_or_pause(error)
                return
            self._is_short = False
            client.setblocking(False)
            self._run(self._enter(client))

    def _end_or_pause(self, error: OSError) -> None:
        if error.errno == errno.EINVAL:  # a process that shares the socket has shut it: nobody comes any more
            asyncio.get_running_loop().remove_reader(self._listening)
            return
        if not self._is_short:
            logger.error("grpc.accept: no client can be let in: %s; allow more files: ulimit -n", error)
        self._is_short = True
        self._pause()

    async def _enter(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        seconds = _HANDSHAKE_SECONDS if self._tls else None
        try:
            await loop.connect_accepted_socket(
                lambda: _ClientSide(self), client, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError:  # no TLS, another version, or gone meanwhile
            client.close()

    def enter(self, client: _ClientSide) -> None:
        """Connect a client to the server."""
        self.clients.add(client)
        self._run(self._connect(client))

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _connect(self, client: _ClientSide) -> None:
        assert client.transport is not None
        server = _ServerSide()
        server.other = client
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: server, str(self._path))
        except OSError as error:
            logger.error("grpc.relay: a client could not be brought to the server: %s", error)
            client.transport.abort()
            return
        if client.transport.is_closing():
            assert server.transport is not None
            server.transport.close()
            return
        client.join(server)
        if self._is_leaving:
            server.let_go()

    async def let_go(self, seconds: float) -> None:
        """Let nobody else in, and tell those who are here to go; return once they have, or after so many seconds."""
        self._is_leaving = True
        self._stop_accepting()
        for client in self.clients:
            if isinstance(client.other, _ServerSide):
                client.other.let_go()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.clients or self._entering:
                    await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        """Cut off who is left."""
        self._stop_accepting()
        for client in list(self.clients):
            if client.transport is not None:
                client.transport.abort()
        for task in list(self._entering):
            task.cancel()
        await asyncio.gather(*self._entering, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:  # not closed before
            os.close(lock)

    def _stop_accepting(self) -> None:
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
