"""`--log-format json`: programs read every line of stderr, and a reader that never reads holds up nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.base.log_events import EVENTS, FIELDS
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

APP = """
import json, logging, os, signal, sys, threading, warnings
from pathlib import Path
import headrace as hr

def work(value):
    order = json.loads(value) if isinstance(value, bytes) else {"do": value}
    match order["do"]:
        case "log":
            logging.getLogger("shop").info("bought\\nit at https://me:SECRET@shop/?token=SECRET")
            print("printed \\x1b[31m", file=sys.stderr)
            warnings.warn("old", DeprecationWarning)
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        case "fail": raise ValueError("no " * 2_000)
        case "reject": raise hr.ItemRejected("shop.closed: on \\u202eSunday\\r\\n{forged}")
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
    return 1

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", visibility=30, max_receives=2, drain=True),
    stages=[hr.stage("work", work)], delivery=hr.jsonl("out.jsonl"),
)
many = hr.Pipeline(hr.items(["fail"] * 3_000), stages=[hr.stage("work", work)], delivery=hr.jsonl("out.jsonl"))
"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
pytestmark = pytest.mark.real_clock


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())", *arguments]


def _lines(said: bytes) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in said.split(b"\n") if line]
    assert b"SECRET" not in said
    assert not any(byte < 0x20 for byte in said.replace(b"\n", b""))
    for line in lines:
        assert line["event"] in EVENTS
        assert set(line) <= {"time", "level", "event", "message", *FIELDS}
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The pipeline, and a queue in which each job does something else."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def _send(folder: Path, *orders: str) -> None:
    attributes = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    jobs = [encode_job(json.dumps({"do": do}).encode(), id=f"{do}-1", attributes=attributes) for do in orders]
    SqliteQueue(folder / "jobs.db").send(jobs)


def _events(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


@pytest.mark.smoke
def test_every_line_of_a_run_is_an_event(folder: Path) -> None:
    """What headrace says, what users log, print and warn of, and what their threads die of."""
    _send(folder, "log", "fail", "reject", "fine")
    done = subprocess.run(
        _command("run", "app.py:pipeline", "--log-format", "json", "--set", "work.workers=1"),
        cwd=folder, capture_output=True, timeout=60,
    )  # fmt: skip
    lines = _lines(done.stderr)
    assert done.returncode == 0
    assert {line["event"] for line in lines} >= {
        "run_begins",
        "log",
        "stderr",
        "job_retried",
        "job_rejected",
        "run_ends",
    }
    (rejected,) = _events(lines, "job_rejected")
    expected = {"code": "shop.closed", "job": "reject-1", "stage": "work", "attempt": 1, "trace": TRACE}
    assert {name: rejected[name] for name in expected} == expected
    assert rejected["plan"] == lines[0]["plan"]
    assert "{forged}" in rejected["message"]
    retried, dead = _events(lines, "job_retried"), _events(lines, "job_dead_lettered")
    assert [line["attempt"] for line in retried + dead] == [1, 2]
    assert {line["code"] for line in retried + dead} == {"ValueError"}
    assert "ValueError" in retried[0]["traceback"] or "raise" in retried[0]["traceback"]
    assert _events(lines, "log")[0]["logger"] == "shop"
    printed = [line["message"] for line in _events(lines, "stderr")]
    assert any("ZeroDivisionError" in message and "Traceback" in message for message in printed)
    assert done.stdout.startswith(b" ") or b"work" in done.stdout


def test_quiet_leaves_errors_alone(folder: Path) -> None:
    """`--quiet` and `--log-level` choose the least level."""
    _send(folder, "reject", "fine")
    done = subprocess.run(
        _command("run", "app.py:pipeline", "--log-format", "json", "--quiet"),
        cwd=folder,
        capture_output=True,
        timeout=60,
    )
    assert done.stderr == b""
    _send(folder, "reject", "fine")
    done = subprocess.run(
        _command("run", "app.py:pipeline", "--log-format", "json", "--log-level", "warning"),
        cwd=folder, capture_output=True, timeout=60,
    )  # fmt: skip
    assert {line["event"] for line in _lines(done.stderr)} == {"job_rejected"}


def test_what_ends_the_command_is_an_event(folder: Path) -> None:
    """An error of the settings, in a log for programs."""
    done = subprocess.run(
        _command("run", "none.py:pipeline", "--log-format", "json"), cwd=folder, capture_output=True, timeout=60
    )
    (line,) = _lines(done.stderr)
    assert done.returncode == 2
    assert (line["event"], line["level"]) == ("error", "error")
    assert "none.py" in line["message"]


def test_a_reader_that_never_reads_holds_up_nothing(folder: Path) -> None:
    """The pipe is full from the start; all jobs end, and the command leaves."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b"x" * 4_096)
        except BlockingIOError:
            break
    os.set_blocking(writing, True)
    done = subprocess.run(
        _command("run", "app.py:many", "--log-format", "json", "--json", "--set", "run.brake_after=1000000"),
        cwd=folder, stdout=subprocess.PIPE, stderr=writing, timeout=60,
    )  # fmt: skip
    os.close(writing)
    os.close(reading)
    assert json.loads(done.stdout)["counters"]["received"] >= 3_000


def test_a_flood_of_failures_is_counted(folder: Path) -> None:
    """Thousands of failures are some lines, and the numbers add up."""
    done = subprocess.run(
        _command("run", "app.py:many", "--log-format", "json", "--json", "--set", "run.brake_after=1000000"),
        cwd=folder, capture_output=True, timeout=60,
    )  # fmt: skip
    lines, counters = _lines(done.stderr), json.loads(done.stdout)["counters"]
    failed = _events(lines, "job_retried") + _events(lines, "job_dead_lettered")
    assert sum(line.get("more", 1) for line in failed) == counters["retried"] + counters["dead_lettered"] > 0
    assert len(lines) < 200


def test_supervised_workers_write_lines_of_their_own(folder: Path) -> None:
    """A worker that is killed, its successor, and what each logs: with number and process."""
    _send(folder, "log", "kill", "reject", "fine")
    done = subprocess.run(
        _command("run", "app.py:pipeline", "--log-format", "json", "--supervise", "2"),
        cwd=folder, capture_output=True, timeout=120,
    )  # fmt: skip
    lines = _lines(done.stderr)
    died, started = _events(lines, "worker_died"), _events(lines, "worker_started")
    assert died
    assert started
    assert died[0]["code"].startswith("SIGKILL")
    assert died[0]["level"] == "error"
    assert {line["worker"] for line in _events(lines, "run_begins")} <= {0, 1}
    begun = {line["process"] for line in _events(lines, "run_begins")}
    assert len(begun) >= 2
    assert _events(lines, "job_rejected")[0]["process"] in begun
    assert _events(lines, "progress")


def test_the_process_of_a_stage_logs_likewise(folder: Path) -> None:
    """What users log and print there is a line, with the process that it comes from."""
    _send(folder, "log", "fine")
    done = subprocess.run(
        _command("run", "app.py:pipeline", "--log-format", "json", "--set", "work.executor=process"),
        cwd=folder, capture_output=True, timeout=120,
    )  # fmt: skip
    lines = _lines(done.stderr)
    assert done.returncode == 0
    (logged,) = _events(lines, "log")
    assert logged["logger"] == "shop"
    assert logged["process"] != lines[0]["process"]
    assert any(line["message"] == "printed \x1b[31m" for line in _events(lines, "stderr"))
