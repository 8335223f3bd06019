"""Clients that behave badly: they vanish with requests in flight, send a byte now and then, or connect and say nothing."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.serve.contestants import OURS, Server
from benchmarks.serve.usage import resident_bytes
from benchmarks.serve.workloads import Workload

_CLIENTS = 64
#: Vanishing clients go after so many seconds at most: some before their request is read, some while it is on the device.
_LONGEST_STAY = 0.024
#: Seconds after which this service cuts off whoever is slow, and how much later it may be at most.
LIMIT_SECONDS, GRACE_SECONDS = 4.0, 1.0
_GOOD = {"connections": 8, "rate": 200.0, "warm_seconds": 0.4}
#: Small requests, one behind the other.
_PIPELINED = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 2_000
_RESET = struct.pack("ii", 1, 0)


def vanish(workload: Workload, times: int, folder: Path, say: Callable[[str], object]) -> dict[str, Any]:
    """Drop 64 connections with requests in flight, again and again, then send good requests; return who got no answer."""
    chance = random.Random(3)
    request = _request(workload)
    with Server(OURS, workload, {}, folder) as server:
        for _ in range(times):
            _vanish_once(server.port, request, chance.uniform(0, _LONGEST_STAY))
        after = server.offered(connections=_CLIENTS, seconds=2.0, warm_seconds=0.0)
        found = {
            "vanished": times * _CLIENTS,
            "crashes": int(not server.is_alive()),
            "good_requests": after["requests"],
            "unanswered": _unanswered(after),
        }
    say(f"clients that vanish: {found}")
    return found


def _vanish_once(port: int, request: bytes, stay_seconds: float) -> None:
    there = [socket.create_connection(("127.0.0.1", port)) for _ in range(_CLIENTS)]
    for one in there:
        one.sendall(request)
    time.sleep(stay_seconds)
    for one in there:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.close()


def linger(
    workload: Workload, idle: int, dripping: int, seconds: float, folder: Path, say: Callable[[str], object]
) -> dict[str, Any]:
    """Let good clients in alone, then beside idle and dripping connections; return their p99, memory, and who was cut off."""
    limits = {"request_seconds": LIMIT_SECONDS, "idle_seconds": LIMIT_SECONDS, "connections": idle + dripping + 100}
    with Server(OURS, workload, {"limits": limits}, folder) as server:
        alone = server.offered(seconds=seconds, **_GOOD)
        memory = resident_bytes(server.pid)
        with _Slow(server.port, idle, dripping) as slow:
            beside = server.offered(seconds=seconds, **_GOOD)
            grown = resident_bytes(server.pid) - memory
            slow.wait(LIMIT_SECONDS + GRACE_SECONDS + 5)
        found = {
            "idle": idle,
            "dripping": dripping,
            "closed_after_s": slow.closed_after(),
            "still_open": slow.num_open,
            "good_p99_ms": [alone["p99_ms"], beside["p99_ms"]],
            "good_requests": beside["requests"],
            "unanswered": _unanswered(beside),
            "memory_mb": grown / 1e6,
            "crashes": int(not server.is_alive()),
        }
    say(f"idle and dripping connections: {found}")
    return found


def flood(workload: Workload, seconds: float, folder: Path, say: Callable[[str], object]) -> dict[str, Any]:
    """Send requests one behind the other without reading an answer; return what was taken, and how the service grew."""
    with Server(OURS, workload, {}, folder) as server:
        server.offered(connections=_CLIENTS, seconds=2.0, warm_seconds=0.0)
        memory, taken, ends = resident_bytes(server.pid), 0, time.monotonic() + seconds
        most = memory
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.setblocking(False)
            while time.monotonic() < ends:
                with contextlib.suppress(BlockingIOError):
                    taken += one.send(_PIPELINED)
                    continue
                most = max(most, resident_bytes(server.pid))
                time.sleep(0.01)
        after = server.offered(connections=8, seconds=1.0, warm_seconds=0.0)
        found = {
            "sent_mb": taken / 1e6,
            "memory_mb": (most - memory) / 1e6,
            "crashes": int(not server.is_alive()),
            "good_requests": after["requests"],
            "unanswered": _unanswered(after),
        }
    say(f"a pipelining flood: {found}")
    return found


def _unanswered(figures: dict[str, Any]) -> int:
    """Return how many good requests got no answer; one if there was none to get any."""
    return figures["requests"] - figures["statuses"].get("200", 0) + (not figures["requests"])


class _Slow:
    """Opens connections, half of the dripping ones within a header, half within a body, and watches until they are closed."""

    def __init__(self, port: int, idle: int, dripping: int) -> None:
        self._began: dict[int, tuple[socket.socket, float]] = {}
        self._lasted: list[float] = []
        self._drips: set[int] = set()
        self._poll = select.epoll()  # `poll` would take a core of the two from the server while it closes thousands
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="slow clients", daemon=True)
        for number in range(idle + dripping):
            self._open(port, number < dripping, is_body=number % 2 == 0)

    @property
    def num_open(self) -> int:
        """Connections that the server has not closed."""
        return len(self._began)

    def closed_after(self) -> float | None:
        """Return the seconds that the longest one lasted; None: none was closed."""
        return max(self._lasted, default=None)

    def wait(self, seconds: float) -> None:
        """Wait until all are closed, or the time is up."""
        ends = time.monotonic() + seconds
        while self._began and time.monotonic() < ends:
            time.sleep(0.05)

    def __enter__(self) -> _Slow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for one, _began in self._began.values():
            one.close()
        self._poll.close()

    def _open(self, port: int, drips: bool, *, is_body: bool) -> None:
        one = socket.create_connection(("127.0.0.1", port))
        if drips:
            end = b"Content-Length: 100000\r\n\r\n" if is_body else b"X-Slow: "
            one.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\n" + end)
            self._drips.add(one.fileno())
        one.setblocking(False)
        self._began[one.fileno()] = (one, time.monotonic())
        self._poll.register(one, select.EPOLLIN)

    def _watch(self) -> None:
        dripped = time.monotonic()
        while not self._stopping.is_set():
            for number, _ in self._poll.poll(0.1):
                self._look(number)
            if time.monotonic() - dripped >= 1:
                dripped = time.monotonic()
                for number in self._drips & self._began.keys():
                    with contextlib.suppress(OSError):
                        self._began[number][0].send(b"x")

    def _look(self, number: int) -> None:
        one, began = self._began[number]
        try:
            if one.recv(65_536):  # an answer that says why it is cut off
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._poll.unregister(number)
        self._lasted.append(time.monotonic() - began)
        del self._began[number]
        one.close()


def _request(workload: Workload) -> bytes:
    body = Path(workload.bodies[0]).read_bytes()
    return f"POST {OURS.path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
