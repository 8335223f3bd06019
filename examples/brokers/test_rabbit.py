"""Jobs from a RabbitMQ server: `RABBITMQ_URL`, such as amqp://guest:guest@localhost:5672/%2f."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from headrace.testing.toxic_proxy import Toxic, ToxicProxy

URL = os.environ.get("RABBITMQ_URL", "")
pytestmark = pytest.mark.skipif(not URL, reason="RABBITMQ_URL names no server")
APP = """
import os, time
from pathlib import Path
import headrace as hr

def work(value):
    time.sleep(0.01)
    if value == b"bad":
        raise hr.ItemRejected("size.odd: not this one")
    if value == b"once" and not Path("failed").exists():
        Path("failed").touch()
        raise hr.ItemFailed("not yet")
    return value.decode()

pipeline = hr.Pipeline(hr.items([]), stages=[hr.stage("work", work)], delivery=hr.jsonl("out.jsonl"))
"""


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Give a channel to the server."""
    connection = pika.BlockingConnection(pika.URLParameters(URL))
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel() -> Iterator[Any]:
    """A channel to the server."""
    with connected() as channel:
        yield channel


@pytest.fixture
def queue() -> Iterator[str]:
    """A queue of its own, that counts deliveries."""
    name = f"headrace-{uuid.uuid4().hex[:8]}"
    with connected() as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    yield name
    with connected() as channel:
        for one in (name, f"{name}.dead"):
            channel.queue_delete(one)


def send(channel: Any, queue: str, bodies: list[bytes]) -> None:
    """Publish jobs in headrace's form."""
    from headrace.sources.jobs import encode_job

    for number, body in enumerate(bodies):
        job = encode_job(body, id=f"job-{number}")
        channel.basic_publish("", queue, job, pika.BasicProperties(message_id=f"job-{number}", delivery_mode=2))


def start(folder: Path, queue: str, *words: str, port: int | None = None) -> subprocess.Popen[str]:
    """Begin a run on the queue."""
    (folder / "app.py").write_text(APP)
    url = URL if port is None else URL.replace(f":{pika.URLParameters(URL).port}/", f":{port}/")
    command = [sys.executable, "-m", "headrace", "run", "app.py:pipeline", "--source", f"{url}?queue={queue}", *words]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


def results(folder: Path) -> list[str]:
    """Return what was delivered."""
    lines = [line for file in folder.glob("out*.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line)["id"] for line in lines if line.endswith("}")]


def test_each_job_ends_once(tmp_path: Path, channel: Any, queue: str) -> None:
    """Good ones are delivered and acknowledged, one that fails is tried again, and a bad one is dead with its reason."""
    send(channel, queue, [b"x"] * 50 + [b"bad", b"once"])
    channel.basic_publish("", queue, b"no job")
    process = start(tmp_path, queue, "--drain")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert sorted(results(tmp_path)) == sorted([f"job-{number}" for number in range(50)] + ["job-51"])
    dead = [channel.basic_get(f"{queue}.dead", auto_ack=True)[1].headers["x-reason"] for _ in range(2)]
    assert sorted(reason.split(":")[0] for reason in dead) == ["message.json", "work"]
    assert any("size.odd" in reason for reason in dead)
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_what_a_dead_worker_had_comes_to_another(tmp_path: Path, channel: Any, queue: str) -> None:
    """Nothing is lost at a SIGKILL; what was delivered and not acknowledged yet may come twice."""
    send(channel, queue, [b"x"] * 300)
    first = start(tmp_path, queue, "--results", "out-1.jsonl")
    while len(results(tmp_path)) < 20:
        time.sleep(0.05)
        assert first.poll() is None
    first.kill()
    first.communicate()
    second = start(tmp_path, queue, "--results", "out-2.jsonl", "--drain")
    _, said = second.communicate(timeout=60)
    assert second.returncode == 0, said
    found = results(tmp_path)
    assert set(found) == {f"job-{number}" for number in range(300)}
    assert len(found) - 300 <= 200


def test_a_connection_that_breaks_loses_nothing(tmp_path: Path, channel: Any, queue: str) -> None:
    """The run connects again, says so, and goes on; what the broker gave again may come twice."""
    send(channel, queue, [b"x"] * 300)
    with ToxicProxy(pika.URLParameters(URL).port) as proxy:
        process = start(tmp_path, queue, "--drain", port=proxy.port)
        while len(results(tmp_path)) < 20:
            time.sleep(0.05)
            assert process.poll() is None
        proxy.poison(Toxic("down"))
        time.sleep(0.5)
        proxy.heal()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "does not answer" in said
    assert set(results(tmp_path)) == {f"job-{number}" for number in range(300)}
