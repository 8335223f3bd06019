"""A process with threads whose states are known; watches itself, and prints what it knows as JSON.

python watched_threads.py FOLDER SECONDS [forever]
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.pipeline.station import WorkerThread
from headrace.profiler.watcher.control import Watcher
from headrace.runs.run_folder import RunFolder


def accounts() -> tuple[int, int, int]:
    """Return wall time, CPU time and run-queue delay of the thread that calls, ns."""
    cpu, delay, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.monotonic_ns(), int(cpu), int(delay)


def burn(name: str, until: float, blocked: dict[str, float]) -> None:
    """Compute in Python, and note which share of the time was neither on a core nor waiting for one."""
    begin = accounts()
    while time.monotonic() < until:
        sum(range(1000))
    wall, cpu, delay = (after - before for after, before in zip(accounts(), begin, strict=True))
    blocked[name] = 1 - (cpu + delay) / wall


def main(folder: Path, seconds: float, forever: bool) -> None:
    """Start the threads, watch them, and print the accounts."""
    run = RunFolder.create(folder)
    until = time.monotonic() + seconds + 0.5
    blocked: dict[str, float] = {}
    lock = threading.Lock()
    lock.acquire()
    ours, _theirs = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    timed = socket.create_connection(server.getsockname())
    timed.settimeout(600)  # Python then polls before it receives
    reading, _writing = os.pipe()
    known: dict[str, Callable[[], Any]] = {
        "burner-0": lambda: burn("burner-0", until, blocked),
        "burner-1": lambda: burn("burner-1", until, blocked),
        "sleep": lambda: time.sleep(600),
        "lock": lock.acquire,
        "network": lambda: client.recv(1),
        "network-poll": lambda: timed.recv(1),
        "process": lambda: os.read(reading, 1),
        "process-socket": lambda: ours.recv(1),
    }
    threads = [threading.Thread(target=known[name], name=name, daemon=True) for name in known]
    for thread in threads:
        thread.start()
    watcher = Watcher(folder)
    watcher.start()
    watcher.set_threads([WorkerThread(os.getpid(), thread.native_id or 0, thread.name) for thread in threads])
    print(json.dumps({"helper": watcher.helper_process}), flush=True)
    while forever:
        time.sleep(1)
    time.sleep(seconds)
    report = watcher.close()
    for thread in threads[:2]:
        thread.join()
    print(
        json.dumps(
            {
                "blocked": blocked,
                "helper_cpu_seconds": report.helper_cpu_seconds,
                "samples_per_second": report.state_samples_per_second,
                "not_measured": report.not_measured,
                "problem": report.problem,
            }
        ),
        flush=True,
    )
    run.finish("finished")
    os._exit(0)  # the other threads wait for ever


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), "forever" in sys.argv)
