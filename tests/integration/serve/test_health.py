"""`/livez` and `/readyz` say what is: starting, ready, hung, not able."""

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.integration.serve.service import Service

PIPELINE = """
import time
import headrace as hr

class Lengths(hr.Module):
    def process(self, batch):
        for one in batch:
            if one.startswith(b"hang"):
                time.sleep(1000)
            if one.startswith(b"fail"):
                raise ValueError("not this one")
        return [len(one) for one in batch]

pipeline = hr.Pipeline(source=hr.items([]), module=Lengths())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline, and items to try it with."""
    (tmp_path / "jobs.py").write_text(PIPELINE)
    (tmp_path / "good").write_bytes(b"good")
    (tmp_path / "bad").write_bytes(b"fail")
    return tmp_path


def test_a_worker_that_hangs_is_neither_live_nor_ready(folder: Path) -> None:
    """One call that does not come back is seen, and the service can still be stopped."""
    service = Service(folder, "jobs.py:pipeline", "--probe", "good", "--set", "run.grace_seconds=1")
    try:
        service.read_until("headrace serve: ready")
        assert (service.ask("/readyz")[0], service.ask("/livez")[0]) == (200, 200)
        hung = threading.Thread(target=lambda: service.ask("/v1/jobs", b"hang"))
        hung.start()
        until = time.monotonic() + 60
        while service.ask("/livez")[0] == 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        status, answer = service.ask("/livez")
        assert (status, answer["status"]) == (503, "not live")
        assert "a call of a stage lasts" in answer["reason"]
        assert service.ask("/readyz")[0] == 503
    finally:
        status, _, said = service.end()
    hung.join(60)
    assert not hung.is_alive(), "whoever waits for the hung call is answered at the end"
    assert status == 130, said


def test_a_slow_server_that_a_job_names_makes_nothing_hang(folder: Path) -> None:
    """Whoever names an address cannot have the service taken for dead: what waits on the outside has timeouts of its own."""
    (folder / "jobs.py").write_text(
        PIPELINE.replace("    def process", "    input = hr.BytesInput()\n\n    def process")
    )
    service = Service(
        folder, "jobs.py:pipeline", "--probe", "good", "--allow", "127.0.0.1", "--set", "run.grace_seconds=1"
    )
    with socket.create_server(("127.0.0.1", 0)) as slow:
        try:
            service.read_until("headrace serve: ready")
            job = json.dumps({"url": f"http://127.0.0.1:{slow.getsockname()[1]}/a.jpg"}).encode()
            kind = {"Content-Type": "application/json"}
            waiting = threading.Thread(target=lambda: service.ask("/v1/jobs", job, **kind))
            waiting.start()
            connected, _ = slow.accept()
            until = time.monotonic() + 4
            while time.monotonic() < until:
                assert (service.ask("/livez")[0], service.ask("/readyz")[0]) == (200, 200)
                time.sleep(0.1)
            connected.close()
        finally:
            service.end()
    waiting.join(60)


def test_a_pipeline_that_fails_at_the_probe_is_never_ready(folder: Path) -> None:
    """It is live, and readiness says why not, with the user's own words."""
    service = Service(folder, "jobs.py:pipeline", "--probe", "bad")
    try:
        until = time.monotonic() + 60
        while "not this one" not in str(service.ask("/readyz")[1].get("reason")):
            assert time.monotonic() < until, service.ask("/readyz")
            time.sleep(0.05)
        assert service.ask("/readyz")[0] == 503
        assert service.ask("/livez")[0] == 200
        assert service.ask("/v1/jobs", b"12345")[1]["result"] == 5
    finally:
        status, _, said = service.end()
    assert (status, "serve: ready" in said) == (0, False), said


def test_who_gives_no_item_to_try_it_with_is_told(folder: Path) -> None:
    """Then ready means less: what the pipeline takes is no image, and nothing goes through it before a client's item."""
    for options, is_told in (([], True), (["--probe", "good"], False)):
        service = Service(folder, "jobs.py:pipeline", *options)
        service.wait_until_ready()
        _, _, said = service.end()
        assert ("nothing is there to try the pipeline with" in said) == is_told, said
