"""One run of `benchmarks.bulkheads`: jobs of which one in ten is for somebody who hangs; prints the rate of the others.

python -m benchmarks.bulkheads_case CASE HANGS SECONDS
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

import headrace as hr
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.sources.jobs import encode_job
from headrace.testing import MemoryQueue

#: How long a server or receiver that works takes for an answer; with the default workers, a run waits for nothing else.
ANSWER_SECONDS = 0.04
#: What the model of a task that works takes for one item.
MODEL_SECONDS = 0.004
#: More good jobs a second than any case can do.
_MOST_PER_SECOND = 600
_ANSWER = b"HTTP/1.1 %s\r\nContent-Length: 2\r\n\r\nok"


def serve(listener: socket.socket, hangs: bool) -> None:
    """Answer, or accept and say nothing; a path that begins with /bad is answered with an error."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, hangs), daemon=True).start()


def _answer(connection: socket.socket, hangs: bool) -> None:
    try:
        while data := connection.recv(65536):
            if hangs:
                time.sleep(3600)
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            while len(body) < sum(lengths):
                body += connection.recv(65536)
            time.sleep(ANSWER_SECONDS)
            is_bad = head.split(b" ")[1].startswith(b"/bad")
            connection.sendall(_ANSWER % (b"500 Broken" if is_bad else b"200 OK"))
    except OSError:
        return


def started(hangs: bool) -> int:
    """Return the port of a server in a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    if os.fork() == 0:
        threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
        serve(listener, hangs)
    port: int = listener.getsockname()[1]
    listener.close()
    return port


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


class Count:
    """Counts what became of jobs that are not the hanging party's."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._num = 0
        self._first: float | None = None
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> None:
        """Count one; the first begins the time, and at its end the rate is printed and the process ends."""
        if not job.id.startswith("good"):
            return
        with self._lock:
            if self._first is None:
                self._first = time.monotonic()
                threading.Timer(self._seconds, self._print).start()
            self._num += 1

    def _print(self) -> None:
        print(json.dumps({"rate": self._num / self._seconds}), flush=True)
        os._exit(0)


class Counting(hr.Observer):
    """Counts delivered jobs."""

    def __init__(self, count: Count) -> None:
        self._count = count

    def job_settled(self, job: Job, outcome: Any) -> None:
        """Count it if it was delivered."""
        if outcome.kind.value == "delivered":
            self._count(job)


class Forget(Collect):
    """Delivers nowhere."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Forget it."""
        return True


class Echo(hr.Module):
    """A model that takes so long for each item."""

    input = hr.BytesInput()

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def process(self, batch: Any) -> list[int]:
        """Return a number for each item."""
        if self._seconds:
            time.sleep(self._seconds * len(batch))
        return [1] * len(batch)


def _job(case: str, number: int, good: str, bad: str) -> bytes:
    """Return one job; one in ten is the hanging party's, if it is there."""
    is_bad = bool(bad) and number % 10 == 0
    id_ = f"{'bad' if is_bad else 'good'} {number}"
    place = bad if is_bad else good
    if case == "source_host":
        return encode_job(f"{place}{number}", id=id_)
    if case == "task":
        return encode_job(b"x", id=id_, task=place)
    return encode_job(b"x", id=id_, callback=place)


def main(case: str, hangs: bool, seconds: float) -> None:
    """Run a case until its time is over."""
    queue = MemoryQueue(visibility_seconds=60)
    good = bad = ""
    modules: dict[str, Any] = {"module": Echo()}
    if case == "task":
        good, bad = "fast", "slow"
        modules = {"modules": {"fast": Echo(MODEL_SECONDS), "slow": Echo(3600.0)}}
    else:
        good = f"http://127.0.0.1:{started(False)}/"
        bad = f"{good}bad" if case == "shared_host" else f"http://127.0.0.1:{started(True)}/"
    queue.send([_job(case, number, good, bad if hangs else "") for number in range(int(seconds * _MOST_PER_SECOND))])
    delivery = hr.callback() if case in ("receiver", "shared_host") else Forget()
    pipeline = hr.Pipeline(source=hr.queue(queue), delivery=delivery, **modules)
    plan = hr.Plan().with_settings(["network.allow=['127.0.0.0/8']", "run.warm_up=false"])
    hr.run(pipeline, plan, observers=[Counting(Count(seconds))])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "hangs", float(sys.argv[3]))
