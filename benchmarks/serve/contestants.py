"""Servers that take part: how each is started, when it answers, what it used, how it is stopped.

with Server(MOSEC, workload, {"batch": 64}, folder) as server:
    figures = offer(server.order(connections=8))
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import ROOT
from benchmarks.serve import environments
from benchmarks.serve.load import Order, offer
from benchmarks.serve.usage import descendants, usage
from benchmarks.serve.workloads import Workload

_START_SECONDS, _STOP_SECONDS = 60.0, 10.0
Knobs = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Contestant:
    """A server, and the settings that it is tried with.

    Attributes:
        program: Its environment, and what its module begins with.
        path: Where it takes requests.
        grids: {workload: settings to try}; those of the first are taken where nothing is tuned.
        decode: How it decodes images: `usual`, as most code does, or `scaled`, as headrace does.
        headers: That each request needs beside the usual ones.
    """

    program: str
    path: str
    grids: Mapping[str, tuple[Knobs, ...]] = field(default_factory=dict)
    decode: str = "usual"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called in results."""
        return self.program if self.decode == "usual" else f"{self.program}, {self.decode} decode"

    def command(self, workload: Workload, port: int, knobs: Knobs, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command that starts it, and what to add to its environment."""
        chosen = json.dumps({**workload.settings, "port": port, "decode": self.decode, **knobs})
        python = environments.python_of(self.program, folder)
        added = {"BENCHMARK_PEER": chosen, **environments.variables_of(self.program, folder)}
        return [str(python), "-m", f"benchmarks.serve.peers.{self.program}_server"], added


class Headrace(Contestant):
    """Ours: one setting for everything."""

    def command(self, workload: Workload, port: int, knobs: Knobs, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command that starts it; see `Contestant.command`."""
        counts = f"{workload.settings['lock']}.counts"
        chosen = json.dumps({**workload.settings, "plan": workload.plan, "port": port, "counts": counts, **knobs})
        return [sys.executable, "-m", "benchmarks.serve.ours", chosen], {}


def _grid(*points: tuple[int, float, int]) -> tuple[Knobs, ...]:
    return tuple({"batch": batch, "wait_ms": wait_ms, "workers": workers} for batch, wait_ms, workers in points)


_CORES = measure.usable_cores()
OURS = Headrace("headrace", "/v1/jobs")
PEERS = (
    Contestant("mosec", "/inference", {
        "emulated": _grid((64, 3, 1), (32, 1, 1), (64, 1, 1), (32, 3, 1)),
        "real": _grid((1, 1, _CORES), (2, 1, _CORES), (8, 1, _CORES)),
    }),
    Contestant("fastapi", "/predict", {
        "emulated": _grid((64, 3, 1), (64, 1, 1), (32, 1, 1)),
        "real": _grid((1, 0, 1), (2, 0, 1)),
    }),
    Contestant("litserve", "/predict", {
        "emulated": _grid((64, 3, 1), (32, 1, 1)),
        "real": _grid((1, 0, _CORES), (8, 1, _CORES)),
    }),
    Contestant("bentoml", "/predict", {
        "emulated": _grid((64, 3, 1), (32, 1, 1)),
        "real": _grid((4, 1, _CORES), (1, 1, _CORES)),
    }),
    # Not with decoding: it needs a numpy that OpenCV's version here does not take.
    Contestant("pytriton", "/v2/models/pipeline/infer", {
        "emulated": _grid((64, 3, 1), (32, 1, 1), (64, 1, 1)),
    }, headers={"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}),
)  # fmt: skip


class Server:
    """A server that answers for the length of a `with` block.

    Args:
        contestant: Which.
        workload: What it is asked for.
        knobs: Its settings.
        folder: Of the peers' environments.

    Raises:
        RuntimeError: If it does not answer within a minute; says what it printed last.
    """

    def __init__(self, contestant: Contestant, workload: Workload, knobs: Knobs, folder: Path) -> None:
        self.name = contestant.name
        self._contestant, self._workload, self._knobs, self._folder = contestant, workload, knobs, folder

    def __enter__(self) -> "Server":
        self._port = free_port()
        command, added = self._contestant.command(self._workload, self._port, self._knobs, self._folder)
        environment = {**os.environ, **_QUIET, **added}
        self._log = Path(f"{self._workload.settings['lock']}.{self.name.replace(', ', '-')}.log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, process_group=0
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        left = descendants(self._process.pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        for pid in left:  # BentoML's workers are in groups of their own, and stay
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Of its first process; the others descend from it."""
        return self._process.pid

    @property
    def port(self) -> int:
        """Where it listens, on this machine."""
        return self._port

    def is_alive(self) -> bool:
        """Whether its first process runs."""
        return self._process.poll() is None

    def order(self, **settings: Any) -> Order:
        """Return an order for the load client."""
        bodies = self._workload.bodies
        settings["headers"] = {**self._contestant.headers, **settings.get("headers", {})}
        return Order(host="127.0.0.1", port=self._port, path=self._contestant.path, bodies=bodies, **settings)

    def offered(self, **settings: Any) -> dict[str, Any]:
        """Send a load, and return its figures with what the server used for each answer."""
        before = usage(self.pid)
        figures = offer(self.order(**settings))
        return figures | (usage(self.pid) - before).per_request(figures)

    def _wait(self) -> None:
        body, ends = Path(self._workload.bodies[0]).read_bytes(), time.monotonic() + _START_SECONDS
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{self._contestant.path}",
            body,
            {"Content-Type": "image/jpeg", **self._contestant.headers},
        )
        while self.is_alive() and time.monotonic() < ends:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):
                return
            time.sleep(0.1)
        last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
        raise RuntimeError(f"{self.name} does not answer; it printed: {' / '.join(last) or 'nothing'}")


#: What asks servers not to report to their makers, and libraries to leave the cores to the servers.
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "LITSERVE_DISABLE_ANALYTICS": "1",
    "BENTOML_DO_NOT_TRACK": "True",
}


def free_port() -> int:
    """Return a port of this machine that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
