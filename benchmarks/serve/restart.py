"""Rolling restarts under load: how many of many requests fail while SIGHUP replaces the workers again and again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.paths import ROOT
from benchmarks.serve import grpc_load
from benchmarks.serve.contestants import free_port
from benchmarks.serve.load import Order, offer

_WORKERS, _CONNECTIONS, _GRPC_CONNECTIONS, _LOAD_SECONDS = 2, 32, 8, 10.0
_PIPELINE = """
import headrace as hr

class Lengths(hr.Module):
    def process(self, batch):
        return [len(one) for one in batch]

pipeline = hr.Pipeline(source=hr.items([]), module=Lengths())
"""


def measure_restarts(num_requests: int, folder: Path, say: Callable[[str], object]) -> dict[str, Any]:
    """Return how many requests were answered, how many failed, and during how many restarts of all workers."""

    def ask(service: _Service, seconds: float) -> dict[str, Any]:
        return offer(
            Order(
                host="127.0.0.1",
                port=service.port,
                path="/v1/jobs",
                bodies=[str(folder / "body")],
                connections=_CONNECTIONS,
                seconds=seconds,
                warm_seconds=0.0,
            )
        )

    return _measure(num_requests, folder, say, ask)


def measure_grpc_restarts(num_calls: int, folder: Path, say: Callable[[str], object]) -> dict[str, Any]:
    """Return the same of calls of gRPC, made by Triton's client."""

    def ask(service: _Service, seconds: float) -> dict[str, Any]:
        return grpc_load.offer(f"127.0.0.1:{service.grpc_port}", _GRPC_CONNECTIONS, seconds, folder / "body")

    return _measure(num_calls, folder, say, ask)


def _measure(
    num_requests: int, folder: Path, say: Callable[[str], object], ask: Callable[[_Service, float], dict[str, Any]]
) -> dict[str, Any]:
    statuses: Counter[str] = Counter()
    rates = []
    with _serving(folder) as service:
        while statuses.total() < num_requests:
            figures = ask(service, min(_LOAD_SECONDS, num_requests / 1_000))
            statuses.update(figures["statuses"])
            rates.append(figures["rate"])
            say(f"{statuses.total():,} requests, {service.num_restarts} restarts: {dict(statuses)}")
    return {
        "requests": statuses.total(),
        "failures": statuses.total() - statuses["200"],
        "restarts": service.num_restarts,
        "workers": _WORKERS,
        "rate": sum(rates) / len(rates),
        "statuses": dict(statuses),
    }


class _Service:
    """`headrace serve --supervise`, which is asked to restart its workers whenever it has done so."""

    def __init__(self, folder: Path) -> None:
        self.grpc_port = free_port()
        command = [
            *(sys.executable, "-m", "headrace", "serve", f"{folder / 'lengths.py'}:pipeline", "--port", "0"),
            *("--supervise", str(_WORKERS), "--probe", str(folder / "body"), "--grpc-port", str(self.grpc_port)),
        ]
        self.num_restarts = 0
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        line = self._read_until("listening on http://")
        self.port = int(line.split("http://")[1].split(";")[0].rpartition(":")[2])
        self._wait_until_ready()
        self._is_over = False
        self._thread = threading.Thread(target=self._restart)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._is_over = True
        self.process.terminate()
        self._thread.join()
        self.process.wait()

    def _wait_until_ready(self) -> None:
        while True:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5),
            ):
                return
            time.sleep(0.1)

    def _restart(self) -> None:
        while not self._is_over:
            self.process.send_signal(signal.SIGHUP)
            if not self._read_until("all workers were restarted"):
                return
            self.num_restarts += 1

    def _read_until(self, text: str) -> str:
        assert self.process.stderr is not None
        return next((line for line in self.process.stderr if text in line), "")


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[_Service]:
    (folder / "lengths.py").write_text(_PIPELINE)
    (folder / "body").write_bytes(b"12345")
    service = _Service(folder)
    try:
        yield service
    finally:
        service.close()
