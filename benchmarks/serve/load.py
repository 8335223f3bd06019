"""The load client: a process of its own that imports nothing of headrace. `offer(order)` runs it and returns its figures.

How this works: one event loop, one protocol object per connection, requests written as bytes that were made beforehand,
answers found by their Content-Length. A closed loop sends the next request when an answer is there. An open loop sends at the
times of a schedule, whatever the server does: a request for which no connection is free waits in the client, and its latency
counts from the intended send; or, if the order says so, it is not sent. A timer of the kernel wakes the loop, since the loop's
own timers count whole milliseconds.

    python -m benchmarks.serve.load < ORDER.json
"""

import asyncio
import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.paths import ROOT
from benchmarks.serve import arrivals
from benchmarks.serve.figures import UNSENT, Sent, in_milliseconds, summarize

#: Seconds that answers may still take when nothing is sent any more.
_PATIENCE_SECONDS = 10.0
#: A connection that was idle for longer is looked at before it is used again, as urllib3 does with every one: a server may have
#: closed it.
_FRESH_SECONDS = 1.0
#: Of the first answer of each status that is not 200.
_KEPT_BYTES = 300
_CLOCK_MONOTONIC, _NONBLOCK, _ABSOLUTE = 1, os.O_NONBLOCK, 1


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to send."""

    host: str
    port: int
    path: str
    bodies: Sequence[str]
    """Files, one body each; sent in turn."""
    headers: dict[str, str] = field(default_factory=dict)
    connections: int = 1
    seconds: float = 5.0
    """Of the window that counts; `warm_seconds` come before it. An open loop counts what is sent in it, a closed one what is
    answered in it."""
    warm_seconds: float = 1.0
    rate: float | None = None
    """Requests per second of the open loop; None: a closed loop."""
    seed: int = 5
    intervals: Sequence[float] = ()
    """Recorded intervals to send at, instead of Poisson arrivals."""
    deadline_ms: float | None = None
    """Later answers are no goodput; `deadline_header`, if named, tells the server."""
    deadline_header: str = ""
    waits_for_connection: bool = True
    """Whether a request of an open loop for which no connection is free waits; if not, it is never sent: who has as many under
    way as it may have gives up at once, as its deadline would pass here."""
    every_request: bool = False
    """Return the intended send, the end and the status of each request too."""

    @property
    def is_open(self) -> bool:
        """Whether it is an open loop."""
        return self.rate is not None or bool(self.intervals)

    def schedule(self) -> list[float]:
        """Return when the open loop sends, seconds from its start."""
        seconds = self.warm_seconds + self.seconds
        if self.intervals:
            return arrivals.recorded(self.intervals, seconds)
        return arrivals.poisson(self.rate or 0.0, seconds, self.seed)


def offer(order: Order) -> dict[str, Any]:
    """Run the client as the order says and return what `summarize` does, with the client's own CPU.

    Raises:
        RuntimeError: If the client ended without figures.
    """
    limit = order.warm_seconds + order.seconds + _PATIENCE_SECONDS + 30
    command = [sys.executable, "-m", "benchmarks.serve.load"]
    done = subprocess.run(
        command, input=json.dumps(asdict(order)), cwd=ROOT, capture_output=True, text=True, timeout=limit
    )
    if done.returncode:
        raise RuntimeError(f"the load client ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


class Client:
    """Sends what an order says; see above.

    Attributes:
        requests: Those that have ended.
        said: {status: the first answer with it}, without 200.
    """

    def __init__(self, order: Order) -> None:
        self.requests: list[Sent] = []
        self.said: dict[str, str] = {}
        self._order = order
        self._bytes = [_request(order, Path(body).read_bytes()) for body in order.bodies]
        self._number = 0
        self._idle: deque[_Connection] = deque()
        self._waiting: deque[float] = deque()
        self._late: list[float] = []
        self._in_flight = 0
        self._is_over = False
        self._connecting: set[asyncio.Future[None]] = set()
        self._open: set[_Connection] = set()

    async def run(self) -> dict[str, Any]:
        """Send everything, wait for the answers, and return the figures."""
        try:
            return await self._run()
        finally:
            self._is_over = True
            for task in self._connecting:
                task.cancel()
            for connection in list(self._open):
                connection.close()
            while self._open:
                await asyncio.sleep(0)

    async def _run(self) -> dict[str, Any]:
        for _ in range(self._order.connections):
            self._idle.append(await self._connect())
        began, cpu = time.perf_counter(), time.process_time()
        window = (began + self._order.warm_seconds, began + self._order.warm_seconds + self._order.seconds)
        if self._order.is_open:
            await _Timer([began + offset for offset in self._order.schedule()], self._send_due).over
            await self._answered()
        else:
            self._send(began, self._order.connections)
            await asyncio.sleep(window[1] - began)
            self._is_over = True
        sent = sum(one.status != UNSENT for one in self.requests)
        cpu_us = (time.process_time() - cpu) / max(1, sent) * 1e6
        answered = sum(one.status == 200 for one in self.requests)
        own = {"said": self.said, "sent": sent, "answered": answered, "client_cpu_us": cpu_us}
        return {**self._figures(window), **own, "client_late": in_milliseconds(self._late)}

    def ended(self, connection: "_Connection", status: int) -> None:
        """Note an answer, or its absence, and send on."""
        self._in_flight -= 1
        self.requests.append(Sent(connection.intended, connection.sent, time.perf_counter(), status))
        if not connection.is_closed:
            self._take(connection)

    def lost(self, connection: "_Connection") -> None:
        """Open another connection in place of one that ended."""
        self._open.discard(connection)
        if not self._is_over:
            task = asyncio.ensure_future(self._connect_again())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _take(self, connection: "_Connection") -> None:
        if self._is_over:
            return
        if not self._order.is_open:
            self._write(connection, time.perf_counter())
        elif self._waiting:
            self._write(connection, self._waiting.popleft())
        else:
            self._idle.append(connection)

    def _send_due(self, intended: float) -> None:
        self._late.append(time.perf_counter() - intended)
        self._send(intended)

    def _send(self, intended: float, count: int = 1) -> None:
        for _ in range(count):
            while self._idle and self._idle[-1].has_ended():
                self._idle.pop()
            if self._idle:
                self._write(self._idle.pop(), intended)
            elif self._order.waits_for_connection:
                self._waiting.append(intended)
            else:
                self.requests.append(Sent(intended, intended, intended, UNSENT))

    def _write(self, connection: "_Connection", intended: float) -> None:
        self._number += 1
        self._in_flight += 1
        connection.write(self._bytes[self._number % len(self._bytes)], intended)

    async def _connect(self) -> "_Connection":
        make = partial(_Connection, self)
        loop = asyncio.get_running_loop()
        connection = (await loop.create_connection(make, self._order.host, self._order.port))[1]
        if not connection.is_lost:
            self._open.add(connection)
        return connection

    async def _connect_again(self) -> None:
        while not self._is_over:
            with contextlib.suppress(OSError):
                self._take(await self._connect())
                return
            await asyncio.sleep(0.05)

    async def _answered(self) -> None:
        ends = time.perf_counter() + _PATIENCE_SECONDS
        while (self._in_flight or self._waiting) and time.perf_counter() < ends:
            await asyncio.sleep(0.01)
        self._is_over = True

    def _figures(self, window: tuple[float, float]) -> dict[str, Any]:
        low, high = window
        when = attrgetter("intended" if self._order.is_open else "ended")
        counted = [one for one in self.requests if low <= when(one) < high]
        deadline = None if self._order.deadline_ms is None else self._order.deadline_ms / 1e3
        figures = summarize(counted, high - low, deadline)
        figures["unfinished"] = self._in_flight + len(self._waiting) if self._order.is_open else 0
        if self._order.every_request:
            figures["every_request"] = [(one.intended - low, one.ended - low, one.status) for one in counted]
        return figures


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, client: Client) -> None:
        self.intended = self.sent = 0.0
        self.is_closed = self.is_lost = False
        self._client = client
        self._used_at = time.perf_counter()
        self._waits = False
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def has_ended(self) -> bool:
        """Whether the server has closed it, be it that this loop has not heard of it."""
        if self.is_closed or time.perf_counter() - self._used_at < _FRESH_SECONDS:
            return self.is_closed
        look = select.poll()
        look.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(look.poll(0))  # between requests nothing comes but the end

    def close(self) -> None:
        """Close without waiting for an answer."""
        self._transport.close()

    def write(self, request: bytes, intended: float) -> None:
        """Send a request that was meant to be sent at a time."""
        self.intended, self.sent, self._waits = intended, time.perf_counter(), True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or len(self._received) < end + 4 + _length(self._received[:end].lower()):
            return
        status, head = int(self._received[9:12]), self._received[:end].lower()
        if status != 200:
            self._client.said.setdefault(str(status), self._received[end + 4 :][:_KEPT_BYTES].decode(errors="replace"))
        self._received = b""
        if status == 100:
            return
        if b"connection: close" in head:
            self.is_closed = True
            self._transport.close()
        self._end(status)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = self.is_lost = True
        self._end(0)
        self._client.lost(self)

    def _end(self, status: int) -> None:
        self._used_at = time.perf_counter()
        if self._waits:
            self._waits = False
            self._client.ended(self, status)


class _Timer:
    """Calls a function at each of some times, those that are past at once; `over` is done after the last."""

    def __init__(self, times: Sequence[float], call: Callable[[float], object]) -> None:
        self._times, self._call, self._next = times, call, 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._handle, self._due)
        self._due(is_first=True)

    def _due(self, *, is_first: bool = False) -> None:
        if not is_first:
            os.read(self._handle, 8)
        while self._next < len(self._times) and self._times[self._next] <= time.perf_counter():
            self._call(self._times[self._next])
            self._next += 1
        if self._next < len(self._times):
            self._arm(self._times[self._next])
        elif not self.over.done():
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self.over.set_result(None)

    def _arm(self, when: float) -> None:
        seconds, rest = divmod(max(1, int(when * 1e9)), 1_000_000_000)
        value = (ctypes.c_long * 4)(0, 0, seconds, rest)  # struct itimerspec: no interval, then when
        self._libc.timerfd_settime(self._handle, _ABSOLUTE, value, None)


def _length(head: bytes) -> int:
    """Return the body's length; peers that answer in chunks would need more than this client knows."""
    place = head.find(b"content-length:")
    return int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0


def _request(order: Order, body: bytes) -> bytes:
    headers = {"Host": f"{order.host}:{order.port}", "Content-Type": "image/jpeg", **order.headers}
    if order.deadline_header and order.deadline_ms is not None:
        headers[order.deadline_header] = f"{order.deadline_ms:g}"
    lines = [f"POST {order.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def main() -> None:
    """Read the order, send, print the figures."""
    order = Order(**json.load(sys.stdin))
    try:
        import uvloop as loops
    except ImportError:
        loops = asyncio
    print(json.dumps(loops.run(Client(order).run())))


if __name__ == "__main__":
    main()
