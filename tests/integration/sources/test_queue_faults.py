"""Queues that fail while a worker is on them: restarted, frozen, locked, full; and workers that stop and die beside them."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.protocols import Queue
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue
from headrace.testing import Call, Lies, MemoryQueue, Receiver, Reply, lying

pytestmark = pytest.mark.real_clock

#: A worker: works on jobs for so many seconds each, posts the lengths, until the queue is empty; or until it is killed, where
#: acks wait for company for as long as is given.
WORKER = """
import sys, time
import headrace as hr
from headrace.sources import loans

address, seconds, visibility, ack_seconds = sys.argv[1], *map(float, sys.argv[2:])
if ack_seconds:
    loans.LoanBook.__init__.__kwdefaults__["ack_seconds"] = ack_seconds

def work(job):
    time.sleep(seconds)
    return len(job)

pipeline = hr.Pipeline(
    hr.queue(address, drain=not ack_seconds, visibility=visibility),
    stages=[hr.fetch("fetch"), hr.stage("work", work)],
    delivery=hr.callback(),
)
plan = {"source": {"wait_seconds": 0.1}, "network": {"allow": ["127.0.0.1"]}}
print("ready", flush=True)
result = hr.run(pipeline, hr.Plan.from_table(plan))
print(result.counters.delivered, result.counters.notes, flush=True)
"""


def start_worker(
    address: str, seconds: float = 0.0, visibility: float = 1.0, ack_seconds: float = 0.0
) -> subprocess.Popen[str]:
    """Start a worker in a process of its own."""
    command = [sys.executable, "-c", WORKER, address, str(seconds), str(visibility), str(ack_seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def send(queue: Queue, count: int, callback: str) -> None:
    """Send so many jobs; the result of each is its number and one."""
    queue.send([encode_job(b"x" * (n + 1), id=f"job-{n}", callback=callback) for n in range(count)])


def all_of(count: int) -> dict[str, int]:
    """Return what a receiver must have in the end."""
    return {f"job-{n}": n + 1 for n in range(count)}


def run(queue: Any, *, drain: bool = True, work: Callable[[bytes], object] = len, **plan: Any) -> hr.Result:
    """Run a worker in this process until the queue is empty."""
    pipeline = hr.Pipeline(
        hr.queue(queue, drain=drain, max_receives=50),
        stages=[hr.fetch("fetch"), hr.stage("work", work)],
        delivery=hr.callback(),
    )
    table = {"source": {"wait_seconds": 0.1}, "network": {"allow": ["127.0.0.1"]}, **plan}
    return hr.run(pipeline, hr.Plan.from_table(table))


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)


# --- a service that keeps its promises, but no others


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_a_queue_that_lies_duplicates_and_loses_nothing(seed: int) -> None:
    """Stale acks that succeed, duplicates, acked messages that come again, failed entries, short polls, no order."""
    queue = lying(seed, duplicate_ratio=0.2, resurrect_ratio=0.2)
    with Receiver() as receiver:
        send(queue, 200, receiver.url)
        run(queue)
        assert receiver.taken == all_of(200)
        assert {call.id: call.result for call in receiver.calls} == all_of(200)  # copies are equal
    assert queue.statistics().dead == 0


def test_a_message_delivered_to_two_workers_has_one_effect() -> None:
    """Every message goes to both at once: the receiver has each result once, and both copies are the same."""
    queue = MemoryQueue(visibility_seconds=30, lies=Lies(duplicate_ratio=0.5), seed=1)
    with Receiver() as receiver:
        send(queue, 60, receiver.url)
        workers = [threading.Thread(target=run, args=(queue,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert receiver.taken == all_of(60)
        bodies: dict[str, set[bytes]] = {}
        for call in receiver.calls:
            bodies.setdefault(call.id, set()).add(call.body)
        assert all(len(copies) == 1 for copies in bodies.values())
        assert receiver.num_duplicates == len(receiver.calls) - 60


@pytest.mark.slow
def test_an_outage_is_no_busy_loop() -> None:
    """A queue that does not answer is asked about once a second and receiver, and the run goes on when it is back."""
    queue = MemoryQueue()
    with Receiver() as receiver:
        send(queue, 5, receiver.url)
        queue.available = False
        queue.calls.clear()
        asked: list[int] = []

        def repair() -> None:
            time.sleep(3)
            asked.append(queue.calls["receive"])
            queue.available = True

        helper = threading.Thread(target=repair)
        helper.start()
        run(queue, source={"wait_seconds": 1.0, "receivers": 2})
        helper.join()
        assert receiver.taken == all_of(5)
    assert asked[0] <= 2 * 8


# --- real servers


@contextlib.contextmanager
def own_redis(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Redis server that keeps what it has in a file, for the length of the block."""
    command = [shutil.which("redis-server") or "", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    process = subprocess.Popen([*command, *durable], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port))
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
    except OSError:
        return False


@pytest.mark.slow
def test_a_redis_server_that_is_killed_and_started_again(redis_server: str, tmp_path: Path) -> None:
    """Killed in the middle of the jobs and back two seconds later with what it wrote: nothing is lost."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"redis://127.0.0.1:{port}/0"
    with Receiver() as receiver, contextlib.ExitStack() as second:
        with own_redis(tmp_path, port) as first:
            with contextlib.closing(open_queue(address)) as queue:
                send(queue, 300, receiver.url)

            def restart() -> None:
                wait_until(lambda: len(receiver.calls) > 50)
                first.kill()
                first.wait()
                time.sleep(1.5)
                second.enter_context(own_redis(tmp_path, port))

            helper = threading.Thread(target=restart)
            helper.start()
            result = run(f"{address}?visibility=3s")
            helper.join()
        assert receiver.taken == all_of(300)
        with contextlib.closing(open_queue(address)) as queue:
            state = queue.statistics()
        assert (state.visible, state.in_flight, state.dead) == (0, 0, 0)
    assert result.counters.notes["source.failed_calls"] >= 1


@pytest.mark.slow
def test_an_sqs_server_that_stands_still(sqs_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that takes connections and does not answer for a while: the worker waits it out, nothing is lost."""
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    name = uuid.uuid4().hex
    client = boto3.client("sqs", region_name="eu-west-1", endpoint_url=sqs_server)
    client.create_queue(QueueName=name)
    client.close()
    address = f"sqs://{name}?region=eu-west-1&endpoint={sqs_server}&visibility=5s"
    pid = _listener_of(int(sqs_server.rpartition(":")[2]))
    with Receiver() as receiver:
        with contextlib.closing(open_queue(address)) as queue:
            send(queue, 30, receiver.url)

        def freeze() -> None:
            wait_until(lambda: len(receiver.calls) > 5)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(2)
            os.kill(pid, signal.SIGCONT)

        helper = threading.Thread(target=freeze)
        helper.start()
        try:
            run(address)
        finally:
            os.kill(pid, signal.SIGCONT)
            helper.join()
        assert receiver.taken == all_of(30)


def _listener_of(port: int) -> int:
    """Return the process, a child of ours, that listens on a port."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        for connection in child.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                return int(child.pid)
    raise RuntimeError(f"nobody listens on port {port}")


# --- a file that cannot be written


def test_a_file_that_somebody_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While another process holds the lock for longer than a statement waits, the worker waits; then it goes on."""
    monkeypatch.setattr("headrace.sources.sqlite_queue.BUSY_SECONDS", 0.2)
    path = tmp_path / "jobs.db"
    with Receiver() as receiver, contextlib.closing(SqliteQueue(path)) as queue:
        send(queue, 400, receiver.url)

        def lock() -> None:
            wait_until(lambda: len(receiver.calls) > 20)
            locker = sqlite3.connect(path, timeout=10, isolation_level=None)
            locker.execute("BEGIN IMMEDIATE")
            time.sleep(1.0)
            locker.execute("ROLLBACK")
            locker.close()

        helper = threading.Thread(target=lock)
        helper.start()
        run(f"sqlite:///{path}?visibility=5s")
        helper.join()
        assert receiver.taken == all_of(400)
    assert "database is locked" in caplog.text


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    """A worker that may write no more for a while (a limit on file sizes) acks later, and nothing is lost."""
    path = tmp_path / "jobs.db"
    with Receiver() as receiver, contextlib.closing(SqliteQueue(path)) as queue:
        send(queue, 300, receiver.url)
        worker = start_worker(f"sqlite:///{path}", visibility=2.0)
        _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        wait_until(lambda: len(receiver.calls) > 30)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (1, hard))
        time.sleep(1.5)
        at_the_limit = len(receiver.calls)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (hard, hard))
        said, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        assert at_the_limit < 300
        assert receiver.taken == all_of(300)
        state = queue.statistics()
    assert (state.visible, state.in_flight, state.dead) == (0, 0, 0)
    assert "source.failed_calls" in said


# --- workers that stop and die


def _forget(path: Path) -> None:
    """Remove what this machine knows of processes that had a queue open, as a container that is made again does."""
    for folder in Path(f"/dev/shm/headrace.{os.getuid()}").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(path) in (folder / "queue").read_text():
                shutil.rmtree(folder)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "forgotten"])
def test_a_kill_between_the_answer_and_the_ack(tmp_path: Path, is_known: bool) -> None:
    """The receiver has the result and its worker dies before the ack: the next one acks what this machine knows as delivered.

    Where that is not known, the job comes again under the same id, as the same bytes.
    """
    path = tmp_path / "jobs.db"
    worker: list[subprocess.Popen[str]] = []
    killers: list[threading.Timer] = []

    def reply(call: Call) -> Reply:
        if call.number == 1:  # the ack waits for company, for far longer
            killers.append(threading.Timer(1.0, worker[0].kill))
            killers[0].start()
        return Reply()

    with Receiver(reply) as receiver, contextlib.closing(SqliteQueue(path)) as queue:
        send(queue, 1, receiver.url)
        # The next one begins while the loan lasts: a receipt that ran out can be acked by nobody.
        worker.append(start_worker(f"sqlite:///{path}", visibility=10.0, ack_seconds=60.0))
        worker[0].communicate(timeout=90)
        assert worker[0].returncode == -signal.SIGKILL
        killers[0].join()
        assert queue.statistics().dead == 0
        if not is_known:
            _forget(path)
        again = start_worker(f"sqlite:///{path}", visibility=10.0)
        again.communicate(timeout=90)
        assert len({(call.id, call.body) for call in receiver.calls}) == 1
        assert receiver.taken == all_of(1)
        assert receiver.num_duplicates == (0 if is_known else 1)
        state = queue.statistics()
    assert (state.visible, state.in_flight, state.dead) == (0, 0, 0)


def test_a_worker_that_stands_still_for_longer_than_its_loans(tmp_path: Path) -> None:
    """Stopped with jobs in hand until another has done them: it sends what it has under the same ids, and nothing is lost."""
    path = tmp_path / "jobs.db"
    with Receiver() as receiver, contextlib.closing(SqliteQueue(path)) as queue:
        send(queue, 40, receiver.url)
        slow = start_worker(f"sqlite:///{path}", seconds=0.2)
        wait_until(lambda: len(receiver.calls) > 2)
        slow.send_signal(signal.SIGSTOP)
        time.sleep(1.2)  # its loans, of a second, run out
        other = start_worker(f"sqlite:///{path}")
        other.communicate(timeout=60)
        slow.send_signal(signal.SIGCONT)
        slow.communicate(timeout=60)
        assert slow.returncode == other.returncode == 0
        assert receiver.taken == all_of(40)
        results: dict[str, set[bytes]] = {}
        for call in receiver.calls:
            results.setdefault(call.id, set()).add(call.body)
        assert all(len(bodies) == 1 for bodies in results.values())
        assert max(Counter(call.id for call in receiver.calls).values()) <= 2
        state = queue.statistics()
    assert (state.visible, state.in_flight, state.dead) == (0, 0, 0)
