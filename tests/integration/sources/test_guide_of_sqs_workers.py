"""The guide from a hand-written SQS worker, as printed, on a moto server."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from headrace.samples import generator
from headrace.testing import Call, Receiver, Reply

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.real_clock


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Stay silent."""


class _Receiver(Receiver):
    """Takes bodies of any form."""

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        self.calls.append(Call(len(self.calls) + 1, path, headers, body))
        return Reply()


@pytest.fixture
def photos(tmp_path: Path) -> Iterator[str]:
    """Serve three photographs and return the address of their folder."""
    generator.make(tmp_path / "photos", count=3, seed=1)
    handler = functools.partial(_Quiet, directory=str(tmp_path / "photos"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def sqs(sqs_server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let boto3 find the server, as an operator would, and return a client."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", sqs_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return boto3.session.Session().client("sqs", region_name="eu-west-1")


def test_both_workers_of_the_guide_send_the_same(
    sqs: Any, photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop and the guide's commands send one and the same bodies; a dry run sends none and leaves the messages."""
    guide = (ROOT / "docs" / "guides" / "from-sqs-worker.md").read_text(encoding="utf-8")
    loop, program = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    dry_run, serve, peek, redrive = re.findall(r"^    headrace (.*)$", guide, re.MULTILINE)
    monkeypatch.setenv("HEADRACE_ALLOW", "127.0.0.1")  # where the messages of this test point
    (tmp_path / "jobs.py").write_text(program)
    shutil.copy(ROOT / "src" / "headrace" / "samples" / "models" / "scenes.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    url = sqs.create_queue(QueueName="photos")["QueueUrl"]
    names = sorted(path.name for path in (tmp_path / "photos").iterdir() if path.suffix in (".jpg", ".png"))
    with _Receiver() as receiver:
        orders = [{"asset_id": name, "image": {"href": f"{photos}/{name}"}, "hook": receiver.url} for name in names]
        for order in orders:
            sqs.send_message(QueueUrl=url, MessageBody=json.dumps(order))
        sqs.send_message(QueueUrl=url, MessageBody="no order")
        assert "3 would be delivered" in _headrace(dry_run)
        assert receiver.calls == []
        _headrace(f"{serve} --limit 4")  # instead of Ctrl-C
        assert "message.json" in _headrace(peek)
        _headrace(redrive)
        sent = _bodies(receiver)
        receiver.calls.clear()
        names_of_loop: dict[str, Any] = {"__name__": "worker"}
        exec(loop, names_of_loop)
        for order in orders:
            names_of_loop["handle"]({"Body": json.dumps(order)})
        assert sent == _bodies(receiver)
    assert len(sent) == 3
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert left["ApproximateNumberOfMessagesNotVisible"] == "0"
    assert left["ApproximateNumberOfMessages"] == "1"  # what is no order, sent back from the dead letters


def _headrace(command: str) -> str:
    words = [sys.executable, "-m", "headrace", *shlex.split(command)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _bodies(receiver: Receiver) -> dict[str, Any]:
    return {body["asset_id"]: body["scene"] for body in (json.loads(call.body) for call in receiver.calls)}
