"""A TCP proxy on the loopback interface that does to connections what networks do: eight toxics, after toxiproxy's.

    with ToxicProxy(redis_port) as proxy:
        proxy.poison(Toxic("latency", seconds=0.2))
        ...                       # talk to 127.0.0.1:proxy.port
        proxy.heal()

How this works: one thread with an event loop of its own accepts, and copies each direction of each connection in a task. A
toxic acts on what comes from the server, as toxiproxy's do by default. `poison` and `heal` hold for connections that are open
and for new ones; those that a toxic has damaged are cut by `heal`, because nobody can know what was lost on them.

References:
    https://github.com/Shopify/toxiproxy#toxics
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, get_args

Kind = Literal["latency", "down", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_READ_BYTES = 64 * 1024
#: A close that answers with a reset, not in an orderly way.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Toxic:
    """One thing that goes wrong.

    `latency` delays what comes by `seconds`; `down` refuses and cuts connections; `bandwidth` lets `num_bytes` per second
    through; `slow_close` delays the end by `seconds`; `timeout` lets nothing through and hangs up after `seconds` (0: never);
    `reset_peer` resets the connection after `seconds`; `slicer` cuts what comes into `num_bytes` each `seconds`; `limit_data`
    hangs up after `num_bytes`.
    """

    kind: Kind
    seconds: float = 0.0
    num_bytes: int = 1


class ToxicProxy:
    """Passes connections on to a port of this machine for the length of a `with` block.

    Args:
        upstream: The server's port on 127.0.0.1.

    Attributes:
        port: Where it listens.
        upstream: The server's port; a change holds for new connections, as when an address moves to another server.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self._toxic: Toxic | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toxic-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._damaged: set[asyncio.StreamWriter] = set()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def __enter__(self) -> ToxicProxy:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._close_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def poison(self, toxic: Toxic) -> None:
        """Let it go wrong from now on."""
        self._toxic = toxic
        if toxic.kind == "down":
            self._do(self._close_all)

    def heal(self) -> None:
        """Let it go well again."""
        toxic, self._toxic = self._toxic, None
        if toxic is not None and toxic.kind == "down":
            self._do(self._listen)
        else:
            self._do(self._cut_damaged)

    def _do(self, action: Callable[[], object]) -> None:
        """Carry an action out in the event loop, and return when it is done."""

        async def act() -> None:
            outcome = action()
            if asyncio.iscoroutine(outcome):
                await outcome

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _close_all(self) -> None:
        if self._listener is not None:
            self._listener.close()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cut_damaged(self) -> None:
        for writer in list(self._damaged):
            self._connections[writer].cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[writer] = task
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self.upstream)
            await self._pass_on(reader, there, back, writer)
        except OSError:
            pass
        except asyncio.CancelledError:
            pass  # cut by `heal`, `down` or the end; the streams' own callback would report it as an error
        finally:
            del self._connections[writer]
            self._damaged.discard(writer)
            for one in (writer, there):
                if one is not None:
                    one.transport.abort() if one.is_closing() else one.close()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        there: asyncio.StreamWriter,
        back: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Copy both directions until either ends."""
        directions = [
            asyncio.create_task(self._copy_out(reader, there)),
            asyncio.create_task(self._copy_back(back, writer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _copy_out(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        while data := await reader.read(_READ_BYTES):
            there.write(data)
            await there.drain()

    async def _copy_back(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_passed = 0
        while data := await back.read(_READ_BYTES):
            toxic = self._toxic
            if toxic is None:
                await _write(writer, data)
            elif not await self._spoil(toxic, data, writer, num_passed):
                return
            num_passed += len(data)
        toxic = self._toxic
        if toxic is not None and toxic.kind == "slow_close":
            await asyncio.sleep(toxic.seconds)

    async def _spoil(self, toxic: Toxic, data: bytes, writer: asyncio.StreamWriter, num_passed: int) -> bool:
        """Write data as a toxic lets it through; return whether the connection goes on."""
        if toxic.kind == "timeout":
            self._damaged.add(writer)
            await asyncio.sleep(toxic.seconds or 1e6)
            return False
        if toxic.kind == "reset_peer":
            await asyncio.sleep(toxic.seconds)
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
            return False
        if toxic.kind == "limit_data":
            await _write(writer, data[: max(0, toxic.num_bytes - num_passed)])
            return num_passed + len(data) < toxic.num_bytes
        if toxic.kind == "latency":
            await asyncio.sleep(toxic.seconds)
        if toxic.kind in ("bandwidth", "slicer"):
            pause = 0.05 if toxic.kind == "bandwidth" else toxic.seconds
            size = max(1, round(toxic.num_bytes * pause)) if toxic.kind == "bandwidth" else toxic.num_bytes
            for start in range(0, len(data), size):
                await _write(writer, data[start : start + size])
                await asyncio.sleep(pause)
            return True
        await _write(writer, data)
        return True


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(data)
        await writer.drain()
