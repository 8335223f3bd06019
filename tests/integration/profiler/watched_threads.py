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

from headrace.pipeline.worker import WorkerThread
from headrace.profiler.sampler.control import Sampler
from headrace.runs.run_folder import RunFolder


def accounts(thread: threading.Thread) -> tuple[int, int, int]:
    """Return wall time, and CPU time and run-queue delay of a thread, ns."""
    cpu, delay, _ = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()
    return time.monotonic_ns(), int(cpu), int(delay)


def blocked_share(before: tuple[int, int, int], after: tuple[int, int, int]) -> float:
    """Return which share of the time a thread was neither on a core nor waiting for one."""
    wall, cpu, delay = (end - begin for begin, end in zip(before, after, strict=True))
    return 1 - (cpu + delay) / wall


def burn() -> None:
    """Compute in Python for ever."""
    while True:
        sum(range(1000))


def main(folder: Path, seconds: float, forever: bool) -> None:
    """Start the threads, watch them, and print the accounts."""
    run = RunFolder.create(folder)
    lock = threading.Lock()
    lock.acquire()
    ours, _theirs = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    timed = socket.create_connection(server.getsockname())
    timed.settimeout(600)  # Python then polls before it receives
    reading, _writing = os.pipe()
    known: dict[str, Callable[[], Any]] = {
        "burner-0": burn,
        "burner-1": burn,
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
    sampler = Sampler(folder)
    sampler.start()
    sampler.set_threads([WorkerThread(os.getpid(), thread.native_id or 0, thread.name) for thread in threads])
    print(json.dumps({"helper": sampler.helper_process}), flush=True)
    while forever:
        time.sleep(1)
    while not (folder / "states").exists():  # the sampler has begun to look
        time.sleep(0.01)
    before = [accounts(thread) for thread in threads]
    time.sleep(seconds)
    after = [accounts(thread) for thread in threads]
    report = sampler.close()
    print(
        json.dumps(
            {
                "blocked": {
                    thread.name: blocked_share(*both) for thread, *both in zip(threads, before, after, strict=True)
                },
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
