"""CPU of the HTTP front per request: POSTs of 12.8 and 128 KB over 16 kept connections, closed loop, on the loopback network.

* `at_once`: the handler answers.
* `handed_over`: the handler gives the request to another thread, which answers: what a pipeline behind it pays.
* `uvicorn`: a peer without a pipeline (httptools, and uvloop if it is there), in the same rounds.

`thread_us` is user and system time of the front's thread, `process_us` of the whole server; the client is another process. The
kernel charges part of receiving to whoever runs at that moment, so compare within a round.

    python -m benchmarks.serve_front [--quick] [--json] [--peer PYTHON]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure

SIZES = {"small": 12_800, "large": 128 * 1024}
CONNECTIONS = 16
#: Requests before counting: the first ones make buffers and fill caches.
WARM_UP = 500
PEER = Path(__file__).with_name("serve_front_peer.py")


@dataclass(frozen=True)
class Cost:
    """What one stretch cost the server."""

    thread_us: float
    """CPU of the thread that took most, per request."""
    process_us: float
    """CPU of all threads, per request."""
    rate: float
    """Requests per second; the client shares the machine."""
    switches: float
    """Times per request that a thread of the server went to sleep."""


# --- The server -------------------------------------------------------------------------------------------------------


def serve(kind: str) -> None:
    """Serve until killed; print the port first."""
    from headrace.serve.http.front import Front
    from headrace.serve.http.request import Answer, Request
    from headrace.serve.http.routes import Routes

    waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def answer(request: Request) -> Answer:
        return Answer(200, b'{"bytes": %d}' % len(request.body))

    def work() -> None:
        while True:
            request = waiting.get()
            request.answer(answer(request))

    routes = Routes()
    routes.add("POST", "/", answer if kind == "at_once" else waiting.put)
    threading.Thread(target=work, daemon=True).start()
    front = Front(routes)
    front.start()
    print(front.address[1], flush=True)
    signal.pause()


@contextmanager
def server(command: list[str]) -> Iterator[tuple[int, int]]:
    """Give (pid, port) of a running server."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


# --- The client -------------------------------------------------------------------------------------------------------


class Load:
    """Connections that send one request after another, each when the last is answered."""

    def __init__(self, port: int, size: int) -> None:
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: image/jpeg\r\n"
        self._request = f"{head}Content-Length: {size}\r\n\r\n".encode() + os.urandom(size)
        self._epoll = select.epoll()
        self._sockets = {}
        for _ in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[connection.fileno()] = connection
            self._epoll.register(connection, select.EPOLLIN)

    def run(self, count: int) -> None:
        """Send `count` requests and read their answers, each of which ends with the only brace that closes."""
        for connection in self._sockets.values():
            connection.sendall(self._request)
        left = count - len(self._sockets)
        open_ = len(self._sockets)
        while open_:
            for descriptor, _ in self._epoll.poll():
                connection = self._sockets[descriptor]
                answer = connection.recv(65536)
                if not answer.startswith((b"HTTP/1.1 200", b'{"bytes": ')):
                    raise RuntimeError(f"the server answered {answer[:200]!r}")
                if not answer.endswith(b"}"):
                    continue
                if left > 0:
                    left -= 1
                    connection.sendall(self._request)
                else:
                    open_ -= 1

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        for connection in self._sockets.values():
            connection.close()


# --- Measuring --------------------------------------------------------------------------------------------------------


def thread_cpu_ns(pid: int) -> dict[str, int]:
    """Return {thread: CPU in ns} of a process."""
    return {task.name: int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()}


def switches(pid: int) -> int:
    """Return how often threads of a process went to sleep."""
    texts = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def cost(command: list[str], size: int, count: int) -> Cost:
    """Return what a server's requests of one size cost."""
    with server(command) as (pid, port):
        load = Load(port, size)
        load.run(WARM_UP)
        before, slept = thread_cpu_ns(pid), switches(pid)
        began = time.perf_counter()
        load.run(count)
        seconds = time.perf_counter() - began
        after, slept = thread_cpu_ns(pid), switches(pid) - slept
        load.close()
    spent = [after[name] - before.get(name, 0) for name in after]
    return Cost(max(spent) / count / 1e3, sum(spent) / count / 1e3, count / seconds, slept / count)


def runners(size: int, count: int, peer: str | None) -> dict[str, Callable[[], Cost]]:
    """Return what is compared."""
    commands = {
        kind: [sys.executable, "-m", "benchmarks.serve_front", "--serve", kind] for kind in ("at_once", "handed_over")
    }
    if peer:
        commands["uvicorn"] = [peer, str(PEER)]
    return {name: lambda command=command: cost(command, size, count) for name, command in commands.items()}


def measure_all(*, quick: bool, peer: str | None) -> dict[str, Any]:
    """Return medians and ranges by size and server."""
    rounds, count = (2, 4_000) if quick else (6, 20_000)
    sizes = {}
    with measure.Window() as window:
        for name, size in SIZES.items():
            results = measure.interleave(runners(size, count, peer), rounds)
            sizes[name] = {server: summary(costs) for server, costs in results.items()}
    handed = {name: of["handed_over"]["process_us"]["median"] for name, of in sizes.items()}
    return {"quick": quick, "front_us": handed, "sizes": sizes, "foreign_cores": window.foreign_cores}


def summary(costs: list[Cost]) -> dict[str, dict[str, float]]:
    """Return median, low and high of each figure."""
    return {key: asdict(measure.spread(asdict(cost)[key] for cost in costs)) for key in asdict(costs[0])}


def table(document: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = ["| body | server | thread us | process us | switches | requests/s |", "|---|---|---|---|---|---|"]
    for size, servers in document["sizes"].items():
        for name, of in servers.items():
            cells = [f"{of[key]['median']:.3g} ({of[key]['low']:.3g} to {of[key]['high']:.3g})" for key in of]
            lines.append(f"| {SIZES[size]:,} B | {name} | {cells[0]} | {cells[1]} | {cells[3]} | {cells[2]} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds of few requests")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter of an environment that has uvicorn")
    parser.add_argument("--serve", choices=("at_once", "handed_over"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return 0
    document = measure_all(quick=arguments.quick, peer=arguments.peer)
    print(json.dumps(document) if arguments.json else table(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
