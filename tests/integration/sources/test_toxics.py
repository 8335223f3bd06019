"""Eight things that networks do, each to the queue, to the source of images, and to the receiver of callbacks."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

import headrace as hr
from headrace.base.protocols import Queue
from headrace.base.records import DeadLetter
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue
from headrace.testing import Receiver
from headrace.testing.toxic_proxy import KINDS, Toxic, ToxicProxy

pytestmark = pytest.mark.real_clock

NUM_JOBS = 6
IMAGE = bytes(range(256)) * 80  # 20 KB
#: Longest time that a run may take on a busy machine; a hang is longer.
DEADLINE_SECONDS = 60.0

#: How strong each one is, for transfers of some hundred bytes to 20 KB.
TOXICS = {
    "latency": Toxic("latency", seconds=0.1),
    "down": Toxic("down"),
    "bandwidth": Toxic("bandwidth", num_bytes=60_000),
    "slow_close": Toxic("slow_close", seconds=0.2),
    "timeout": Toxic("timeout"),
    "reset_peer": Toxic("reset_peer", seconds=0.02),
    "slicer": Toxic("slicer", num_bytes=1000, seconds=0.002),
    "limit_data": Toxic("limit_data", num_bytes=30),
}
#: Those that make things slow, and let everything through in the end.
HARMLESS = {"latency", "bandwidth", "slow_close", "slicer"}


#: Of the 24, those that run every time; the others wait for timeouts, and run with the slow ones.
QUICK = {
    "source": {"reset_peer", "slicer", "limit_data"},
    "callback": {"bandwidth", "slicer"},
    "queue": {"limit_data"},
}


def toxics(where: str) -> Any:
    """Parametrize a test with all eight."""
    return pytest.mark.parametrize(
        "kind", [pytest.param(kind, marks=() if kind in QUICK[where] else pytest.mark.slow) for kind in KINDS]
    )


class Images(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the image."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(IMAGE)))
        self.end_headers()
        self.wfile.write(IMAGE)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Stay silent."""


class ImageServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections are cut here."""


@pytest.fixture(scope="module")
def images() -> Iterator[int]:
    """Serve images, and return the port."""
    server = ImageServer(("127.0.0.1", 0), Images)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def send(queue: Queue, images: int, callback: str) -> None:
    """Send the jobs, to be fetched from a port."""
    queue.send(
        [
            encode_job(f"http://127.0.0.1:{images}/{number}", id=f"job-{number}", callback=callback)
            for number in range(NUM_JOBS)
        ]
    )


def run(queue: str, **deliver: Any) -> tuple[hr.Result, float]:
    """Run a worker until the queue is empty, and return how long it took."""
    pipeline = hr.Pipeline(
        hr.queue(queue, drain=True, max_receives=2, visibility="4s"),
        stages=[hr.fetch("fetch"), hr.stage("length", len)],
        delivery=hr.callback(),
    )
    plan = {
        "source": {"wait_seconds": 0.1},
        "network": {"allow": ["127.0.0.1"]},
        "run": {"brake_after": 0},  # all of the few jobs fail
        "stages": {
            "fetch": {
                "attempts": 2,
                "options": {
                    "timeout_seconds": 1,
                    "breaker_seconds": 0.2,
                    "breaker_max_seconds": 0.5,
                    "give_up_seconds": 2,
                },
            },
            "deliver": {
                "attempts": 2,
                "options": {"timeout_seconds": 1, "breaker_seconds": 0.2, "postpone_max_seconds": 0.5, **deliver},
            },
        },
    }
    began = time.monotonic()
    result = hr.run(pipeline, hr.Plan.from_table(plan))
    return result, time.monotonic() - began


@contextlib.contextmanager
def no_thread_left() -> Iterator[None]:
    """Check that no thread of the worker outlives the block; those of the servers here end with their connections."""
    before = set(threading.enumerate())
    yield
    give_up_at = time.monotonic() + 60
    while (left := _workers() - before) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert not left


def _workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "process_request_thread" not in thread.name}


def check(queue: str, result: hr.Result, seconds: float, receiver: Receiver) -> list[str]:
    """Check that every job ended in its deadline, either with the receiver or with a reason; return the reasons."""
    assert seconds < DEADLINE_SECONDS
    with contextlib.closing(open_queue(queue)) as opened:
        state = opened.statistics()
        letters = cast("list[DeadLetter]", opened.peek(100, dead=True))
    assert (state.visible, state.in_flight, state.delayed) == (0, 0, 0)
    assert len(receiver.taken) + len(letters) >= NUM_JOBS
    assert set(receiver.taken.values()) <= {len(IMAGE)}
    assert result.counters.delivered + result.counters.rejected + result.counters.dead_lettered == NUM_JOBS
    assert all(letter.reason.startswith(("fetch: item job-", "deliver: item job-")) for letter in letters)
    return [letter.reason for letter in letters]


@toxics("source")
def test_source(tmp_path: Path, images: int, kind: str) -> None:
    """Between worker and images, for the whole run: what can arrive does, the rest ends with what was wrong."""
    address = f"sqlite:///{tmp_path}/jobs.db"
    with no_thread_left(), ToxicProxy(images) as proxy, Receiver() as receiver:
        with contextlib.closing(SqliteQueue(tmp_path / "jobs.db")) as queue:
            send(queue, proxy.port, receiver.url)
        proxy.poison(TOXICS[kind])
        reasons = check(address, *run(address), receiver)
    assert len(reasons) == (0 if kind in HARMLESS else NUM_JOBS)
    assert all("http." in reason for reason in reasons)


@toxics("callback")
def test_callback(tmp_path: Path, images: int, kind: str) -> None:
    """Between worker and receiver, for the whole run: what can arrive does, the rest keeps result and reason."""
    address = f"sqlite:///{tmp_path}/jobs.db"
    with no_thread_left(), Receiver() as receiver, ToxicProxy(receiver.port) as proxy:
        with contextlib.closing(SqliteQueue(tmp_path / "jobs.db")) as queue:
            send(queue, images, f"http://127.0.0.1:{proxy.port}/results")
        proxy.poison(TOXICS[kind])
        reasons = check(address, *run(address, give_up_seconds=2), receiver)
    assert len(reasons) == (0 if kind in HARMLESS else NUM_JOBS)
    assert all("give_up_seconds" in reason for reason in reasons)


@toxics("queue")
def test_queue(redis_server: str, images: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between worker and queue, for a second and a half in the middle of the run: everything is delivered."""
    monkeypatch.setattr("headrace.sources.redis_queue.SOCKET_SECONDS", 1.0)
    name = uuid.uuid4().hex
    direct = f"{redis_server}?queue={name}"
    with no_thread_left(), Receiver() as receiver, ToxicProxy(int(redis_server.split(":")[2].split("/")[0])) as proxy:
        with contextlib.closing(open_queue(direct)) as queue:
            send(queue, images, receiver.url)
        helper = threading.Thread(target=_poison_for_a_while, args=(proxy, TOXICS[kind]))
        first = receiver.reply

        def reply(call: Any) -> Any:
            if call.number == 1:
                helper.start()
            return first(call)

        receiver.reply = reply
        result, seconds = run(f"redis://127.0.0.1:{proxy.port}/0?queue={name}")
        helper.join()
        assert seconds < DEADLINE_SECONDS
        assert receiver.taken == {f"job-{number}": len(IMAGE) for number in range(NUM_JOBS)}
        with contextlib.closing(open_queue(direct)) as queue:
            state = queue.statistics()
    assert (state.visible, state.in_flight, state.delayed, state.dead) == (0, 0, 0, 0)
    assert result.counters.delivered >= NUM_JOBS


def _poison_for_a_while(proxy: ToxicProxy, toxic: Toxic) -> None:
    proxy.poison(toxic)
    time.sleep(1.5)
    proxy.heal()
