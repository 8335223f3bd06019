"""A store and a receiver that answer only so much a second, whoever asks: `python -m benchmarks.scale_prediction_server`.

Each call takes its place in a line and is answered when that has come to its turn: what a service does that is throttled by
delay. `GET /item` gives some bytes, at a rate of bytes; `POST /results` is taken, at a rate of calls; `GET /taken` says how
many were, `GET /limits/STORE/RECEIVER` sets both rates (bytes and calls a second).
"""

from __future__ import annotations

import asyncio
import os
import sys

ITEM = os.urandom(20_000)
_FAST = 1e12


class Line:
    """Lets through so much a second."""

    def __init__(self) -> None:
        self.per_second = _FAST
        self._free = 0.0

    async def pass_through(self, amount: float) -> None:
        """Wait until it is the caller's turn and has been served."""
        now = asyncio.get_running_loop().time()
        self._free = max(now, self._free) + amount / self.per_second
        if self._free > now:
            await asyncio.sleep(self._free - now)


class Server:
    """Both services."""

    def __init__(self) -> None:
        self.store, self.receiver = Line(), Line()
        self.taken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0
                )
                await reader.readexactly(length)
                body = await self.answer(*head.split(" ", 2)[:2])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, method: str, path: str) -> bytes:
        """Do what is asked and return the body."""
        if method == "POST":
            await self.receiver.pass_through(1.0)
            self.taken += 1
            return b""
        if path == "/taken":
            return str(self.taken).encode()
        if path.startswith("/limits/"):
            store, receiver = map(float, path.split("/")[2:])
            self.store.per_second, self.receiver.per_second = store or _FAST, receiver or _FAST
            return b""
        await self.store.pass_through(len(ITEM))
        return ITEM


async def main() -> None:
    """Listen on any port, print it, and serve until stdin is closed."""
    server = await asyncio.start_server(Server().serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
