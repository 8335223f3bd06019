"""Addresses that another package brings: what is shown of them, and what is said of parts that are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PARTS = """
from urllib.parse import unquote

from headrace.base.protocols import Source
from headrace.sources.addresses import QueueScheme
from headrace.sources.jobs import encode_job
from headrace.testing import MemoryQueue


def open_queue(address):
    queue = MemoryQueue(visibility_seconds=address.visibility_or())
    queue.send([encode_job(b"x", id="1"), b'{"v": 1, "id": "2", "path": "/etc/hostname"}'])
    return queue


def fail(address):
    raise ConnectionError(f"cannot reach {address.parts.geturl()}")


NONE = None
NOTHING = QueueScheme(open=lambda address: None)
BROKEN = QueueScheme(open=fail)
UNOPENED = QueueScheme(open=None)
KAFKA = QueueScheme(open=open_queue, parameters=("sasl_password",), has_several_hosts=True)


class Endless(Source):
    is_endless = True

    def __init__(self, address, *, drain=False):
        pass

    def receive(self, limit, wait_seconds):
        return None


def read_nothing(address, drain=False):
    if "@" in address:
        raise ConnectionError(f"{address} is {unquote(address)}")


class Rows:
    def __init__(self, path):
        raise RuntimeError("no such column")
"""
ENTRY_POINTS = """
[headrace.queues]
kafka = brought:KAFKA
none = brought:Endless
nothing = brought:NOTHING
broken = brought:BROKEN
unopened = brought:UNOPENED
Shouting = brought:KAFKA
sqlite = brought:KAFKA
[headrace.sources]
endless = brought:Endless
unread = brought:read_nothing
.csv = brought:Rows
[headrace.deliveries]
.list = builtins:list
.none = brought:NONE
.unread = brought:read_nothing
"""
JOBS = """
import headrace as hr

pipeline = hr.Pipeline(hr.folder("none"), stages=[hr.fetch("fetch")], delivery=hr.jsonl("x.jsonl"))
"""
ADDRESS = "kafka://me:geheim@one:9092,two:9092/topic?sasl_password=geheim"


@pytest.fixture
def headrace(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return what types a command in a folder with a pipeline, where a package with parts is installed."""
    (tmp_path / "brought_jobs.py").write_text(JOBS)
    (tmp_path / "orders.csv").touch()
    installed = tmp_path / "installed"
    metadata = installed / "brought-1.0.dist-info"
    metadata.mkdir(parents=True)
    (installed / "brought.py").write_text(PARTS)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace", *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=60)

    return run


Headrace = Callable[..., "subprocess.CompletedProcess[str]"]


def test_passwords_of_an_unknown_service_are_hidden(headrace: Headrace, tmp_path: Path) -> None:
    """Neither a message, a document nor a file of the run has them; and its jobs may name no file of this machine."""
    ran = headrace(
        "run", "brought_jobs.py", "--source", ADDRESS, "--limit", "2", "--results", "r.jsonl", "-o", "run",
    )  # fmt: skip
    tuned = headrace("tune", "brought_jobs.py", "--source", ADDRESS)
    assert "cannot be read twice" in tuned.stderr
    written = "".join(file.read_text(errors="replace") for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert "geheim" not in ran.stdout + ran.stderr + written + tuned.stderr
    assert "kafka://...@one:9092,two:9092/topic?sasl_password=..." in ran.stdout
    assert "file.refused" in written
    assert json.loads((tmp_path / "run" / "run.json").read_text())["versions"]["brought"] == "1.0"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("kafka://one:port,two:9092/topic", "its port is not a number"),
        ("kafka://one/topic?group=a", "unknown key 'group'. Allowed: sasl_password, visibility."),
        (
            "none://one",
            "brings it as brought:Endless, which is <class 'brought.Endless'>; expected a headrace.sources.",
        ),
        ("nothing://one", "brings it as brought:NOTHING, which opened a NoneType; expected a headrace.base.protocols."),
        ("unread://one", "brings it as brought:read_nothing, which returned None; expected a headrace.base.protocols."),
        ("shouting://one", "brings brought:KAFKA by the name 'Shouting', which cannot be used"),
        ("endless://one", "--drain: endless://one cannot be drained"),
        ("orders.csv", "brought brings it as brought:Rows, which failed: RuntimeError: no such column"),
        ("sqlite:///a.db", "a.db does not exist"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(headrace: Headrace, source: str, said: str) -> None:
    """With the part's name where the part is wrong; and no package changes what `sqlite://` means."""
    ran = headrace("run", "brought_jobs.py", "--source", source, "--drain", "--results", "r.jsonl")
    assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ("out.list", "which returned ['o', 'u', 't', '.', 'l', 'i', 's', 't'], which has no flush_items,"),
        ("out.none", "brings it as brought:NONE, which is None; expected a function or class that makes a headrace."),
        ("out.unread", "brings it as brought:read_nothing, which returned None; expected a headrace.base.protocols."),
    ],
)
def test_what_is_no_delivery_is_refused(headrace: Headrace, results: str, said: str) -> None:
    """Before the run, with the package and what it gave."""
    ran = headrace("run", "brought_jobs.py", "--source", ".", "--results", results)
    assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        (
            "broken://me:ge%20heim@one/a",
            3,
            "ConnectionError: cannot reach broken://...@one/a (installed/brought.py:",
        ),
        (
            "unopened://me:ge%20heim@one/a",
            3,
            "brings it as brought:UNOPENED, which failed: TypeError: 'NoneType' object",
        ),
        ("unread://me:ge%20heim@one/a", 2, "unread://...@one/a is unread://...@one/a (installed/brought.py:"),
    ],
)
def test_the_text_of_a_package_shows_no_password(headrace: Headrace, source: str, status: int, said: str) -> None:
    """Errors of opening a queue or source name the package, and quote no secret of the address, however it is written."""
    ran = headrace("run", "brought_jobs.py", "--source", source, "--results", "r.jsonl")
    assert (ran.returncode, said in ran.stderr, "heim" in ran.stderr) == (status, True, False), ran.stderr
