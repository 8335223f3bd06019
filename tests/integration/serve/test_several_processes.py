"""`headrace serve --supervise N`: processes share a port, are restarted in turn, and find the request that kills them."""

import contextlib
import http.client
import importlib.util
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.integration.serve.service import Service

PIPELINE = """
import ctypes
import headrace as hr

class Lengths(hr.Module):
    def process(self, batch):
        if any(one.startswith(b"kill") for one in batch):
            ctypes.string_at(0)
        return [len(one) for one in batch]

pipeline = hr.Pipeline(source=hr.items([]), module=Lengths())
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Two processes that return how long an item is."""
    (tmp_path / "jobs.py").write_text(PIPELINE)
    (tmp_path / "probe").write_bytes(b"probe")
    grpc = ("--grpc-port", "0") if importlib.util.find_spec("grpc") else ()
    service = Service(tmp_path, "jobs.py:pipeline", "--supervise", "2", "--probe", "probe", *grpc)
    service.wait_until_ready()
    yield service
    service.process.kill()
    service.process.communicate()


class Clients:
    """Ask again and again, each on a connection of its own, and note what came."""

    def __init__(self, url: str, number: int) -> None:
        self.num_answered = 0
        self.failures: list[str] = []
        self._place = urlsplit(url)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop asking."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        place = self._place.hostname, self._place.port
        with contextlib.closing(http.client.HTTPConnection(*place, timeout=60)) as connection:
            self._ask_over(connection)

    def _ask_over(self, connection: http.client.HTTPConnection) -> None:
        while not self._is_over.is_set():
            try:
                connection.request("POST", "/v1/jobs", b"12345")
                answer = connection.getresponse()
                body = answer.read()
            except OSError as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            self.num_answered += 1
            if answer.status != 200 or b'"result":5' not in body:
                self.failures.append(f"{answer.status} {body!r}")


class Callers(Clients):
    """The same over gRPC, by Triton's client."""

    def _ask(self) -> None:
        triton = pytest.importorskip("tritonclient.grpc")
        tensor = triton.InferInput("bytes", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[b"12345"]], dtype=object))
        alone = [("grpc.use_local_subchannel_pool", 1)]
        with triton.InferenceServerClient(self._place.netloc, channel_args=alone) as client:
            while not self._is_over.is_set():
                try:
                    assert client.infer("pipeline", [tensor]).as_numpy("result").tolist() == [[5]]
                    self.num_answered += 1
                except Exception as error:
                    self.failures.append(repr(error))


def test_a_module_that_cannot_be_imported_is_said_and_nobody_is_called(tmp_path: Path) -> None:
    """The error names the file and line, the status is that of misuse, and nothing says that anybody listens."""
    (tmp_path / "bad.py").write_text("import math\nmath.no_such_thing\n")
    command = [sys.executable, "-m", "headrace", "serve", "bad.py", "--supervise", "2", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "AttributeError: module 'math' has no attribute 'no_such_thing' (bad.py:2)" in done.stderr
    assert "listening" not in done.stderr


def test_a_worker_says_that_it_is_ready_once_it_is(tmp_path: Path) -> None:
    """Whoever asks then is answered, and before that nobody said so."""
    (tmp_path / "jobs.py").write_text(PIPELINE)
    (tmp_path / "probe").write_bytes(b"probe")
    service = Service(tmp_path, "jobs.py:pipeline", "--supervise", "1", "--probe", "probe")
    try:
        assert "ready" not in service.said
        service.read_until("headrace serve: worker 0 is ready")
        assert service.ask("/readyz") == (200, {"status": "ready"})
    finally:
        status, _, said = service.end()
    assert status == 0, said


def test_a_rolling_restart_fails_nobody(service: Service) -> None:
    """SIGHUP replaces one process after the other while clients go on asking."""
    clients = Clients(service.url, 4)
    try:
        service.process.send_signal(signal.SIGHUP)
        service.read_until("all workers were restarted")
    finally:
        clients.end()
    assert clients.failures == []
    assert clients.num_answered > 0
    status, _, said = service.end()
    assert (status, "died" in said) == (0, False), said


def test_a_rolling_restart_fails_no_call_of_grpc(service: Service) -> None:
    """The next worker listens before the last one lets its clients go, and these are told before they call again."""
    pytest.importorskip("tritonclient.grpc")
    place = re.search(r"grpc://\S+", service.read_until("listening on grpc://"))[0]
    service.read_until("worker 1 is ready")
    clients = Callers(place, 4)
    try:
        service.process.send_signal(signal.SIGHUP)
        service.read_until("all workers were restarted")
    finally:
        clients.end()
    assert clients.failures == []
    assert clients.num_answered > 0


def test_whichever_process_is_asked_knows_the_answer_also_after_a_restart(service: Service) -> None:
    """Who took 202 asks over other connections, which another process may have, and long after its own is gone."""
    later = {"Prefer": "respond-async", "Content-Type": "application/octet-stream"}
    assert service.ask("/v1/jobs?id=a", b"12345", **later) == (202, {"id": "a", "state": "working"})
    until = time.monotonic() + 60
    while "state" in service.ask("/v1/jobs/a")[1]:
        assert time.monotonic() < until
    done = 200, {"id": "a", "result": 5}
    assert [service.ask("/v1/jobs/a") for _ in range(20)] == [done] * 20
    service.process.send_signal(signal.SIGHUP)
    service.read_until("all workers were restarted")
    assert [service.ask("/v1/jobs/a") for _ in range(20)] == [done] * 20
    assert service.ask("/v1/jobs?id=a", b"123", **later)[1]["code"] == "serve.id_taken"


def test_a_request_that_kills_is_found_and_refused(service: Service) -> None:
    """The second death names it; the service goes on, and the same request is refused from then on."""
    for _ in range(2):
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            service.ask("/v1/jobs", b"kill")
        service.read_until("died: SIGSEGV; 1 jobs in work")
    until = time.monotonic() + 60
    status, answer = 0, {}
    while status != 422 and time.monotonic() < until:
        with contextlib.suppress(ConnectionError):  # the news of the death is on its way to the other process
            status, answer = service.ask("/v1/jobs", b"kill")
    assert (status, answer["code"]) == (422, "serve.killer")
    assert service.ask("/v1/jobs", b"12345")[1]["result"] == 5
