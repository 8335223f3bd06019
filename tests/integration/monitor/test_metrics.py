"""`--metrics` of real commands: what a scrape has, alone, supervised and while workers die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.monitor.metrics.server import listen
from headrace.sources.sqlite_queue import SqliteQueue
from tests.integration.monitor.scraped import (
    Command,
    Sample,
    children,
    delivered,
    find_keeper,
    find_workers,
    running,
    send,
    series_of,
)

APP = """
import json, os, signal, time
import headrace as hr

def work(batch):
    time.sleep(0.004)
    for value in batch:
        order = json.loads(value)
        if order.get("do") == "fail":
            raise hr.ItemRejected("my.reason: cannot be done")
    return batch

def look(value):
    return value

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", visibility=30),
    stages=[hr.stage("look", look), hr.stage("work", work, kind="device")], delivery=hr.jsonl("out.jsonl"),
)
"""
SERVICE = """
import time
import headrace as hr


class Same(hr.Module):
    input = hr.BytesInput()

    def process(self, batch):
        if b"slow" in batch:
            time.sleep(1.0)
        return [len(value) for value in batch]


pipeline = hr.Pipeline(hr.items([]), module=Same(), delivery=hr.collect())
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)


@pytest.mark.smoke
def test_a_queue_worker() -> None:
    """Jobs by outcome, failures by code, stages, batches, the queue."""
    send(*['{"n": 1}'] * 30, '{"do": "fail"}')
    with running("run", "app:pipeline", "--set", "work.batch=4") as command:
        command.wait_for(delivered(command, 30))
        command.wait_for(lambda: command.value("headrace_source_jobs", state="dead"))
        command.wait_for(lambda: command.value("headrace_stage_items_total", stage="work", result="failed") or None)
        scrape = command.scrape()
    assert scrape["headrace_job_failures_total", (("code", "my.reason"), ("outcome", "rejected"))] == 1
    assert scrape["headrace_stage_items_total", (("stage", "work"), ("result", "ok"))] == 30
    assert scrape["headrace_job_latency_seconds_count", (("task", ""),)] == 30
    assert scrape["headrace_jobs_received_total", ()] == 31
    assert scrape["headrace_metrics_dropped_total", (("reason", "error"),)] == 0
    assert {"headrace_batch_size_items", "headrace_source_oldest_age_seconds", "headrace_leases_total"} <= series_of(
        scrape
    )


@pytest.mark.parametrize("num_kills", [6, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_workers_that_die_lose_no_count(num_kills: int) -> None:
    """Workers are killed while it is scraped: counters only grow, no series comes twice, and each death is counted."""
    send(*['{"n": 1}'] * 50 * num_kills)
    deaths = (("cause", "killed"),)
    with running("run", "app:pipeline", "--supervise", "2", "--set", "work.batch=1") as command:
        before: dict[Sample, float] = {}

        def scrape() -> dict[Sample, float]:
            now = command.scrape()
            for sample, value in before.items():
                if sample[0].endswith(("_total", "_bucket", "_count", "_sum")):
                    assert now[sample] >= value, sample
            before.update(now)
            return now

        command.wait_for(delivered(command, 1))
        keeper = find_keeper(command)
        for kill in range(num_kills):
            done = before.get(("headrace_jobs_total", (("task", ""), ("outcome", "delivered"))), 0)
            command.wait_for(lambda at_least=done + 1: scrape() and delivered(command, at_least)())
            workers = [pid for pid in children(command.process.pid) if pid != keeper]
            os.kill(workers[kill % len(workers)], signal.SIGKILL)
            command.wait_for(lambda number=kill + 1: scrape()["headrace_worker_deaths_total", deaths] >= number or None)
        command.wait_for(lambda: command.value("headrace_workers_alive") == 2 or None)
        last = scrape()
        # A worker that was killed while its run was opened had not begun.
        assert num_kills / 2 < last["headrace_worker_starts_total", ()] <= num_kills + 2
        assert last["headrace_workers", ()] == 2


@pytest.mark.parametrize("killed", ["exporter", "keeper"])
def test_the_exporter_comes_back(killed: str) -> None:
    """The process that answers scrapes is killed, or its keeper: another answers at the same address; nothing is forgotten."""
    send('{"n": 1}')
    with running("run", "app:pipeline", "--supervise", "1") as command:
        command.wait_for(delivered(command, 1))
        keeper = find_keeper(command)
        (exporter,) = children(keeper)
        os.kill(exporter if killed == "exporter" else keeper, signal.SIGKILL)

        def answers() -> bool | None:
            with contextlib.suppress(OSError):
                return delivered(command, 1)()
            return None

        command.wait_for(lambda: not is_running(exporter) or None)  # until then it may still answer
        command.wait_for(answers)
        assert children(find_keeper(command)) != [exporter]


def is_running(process: int) -> bool:
    """Return whether a process is there, and not just waits for its parent."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_nothing_of_it_is_left() -> None:
    """A supervisor that is killed takes workers, keeper and exporter with it."""
    send('{"n": 1}')
    command = Command("run", "app:pipeline", "--supervise", "1")
    command.wait_for(delivered(command, 1))
    all_of_them = [find_keeper(command), *find_workers(command), *children(find_keeper(command))]
    assert len(all_of_them) == 3
    command.process.kill()
    command.process.wait()
    command.said.close()
    until = time.monotonic() + 20
    while any(map(is_running, all_of_them)):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_service() -> None:
    """Requests by status, refusals by code, and their latency."""
    Path("service.py").write_text(SERVICE)
    with running("serve", "service:pipeline", "--port", "0", "--max-requests", "1") as command:
        url = command.wait_for(lambda: found[0] if (found := command.find(r"listening on (http://[^;]+)")) else None)

        def ask(body: bytes) -> int:
            try:
                with urllib.request.urlopen(f"{url}/v1/jobs", body, timeout=30) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        command.wait_for(lambda: ask(b"one") == 200 or None)
        slow = threading.Thread(target=ask, args=(b"slow",))
        slow.start()
        command.wait_for(lambda: command.value("headrace_requests_waiting") or ask(b"one") == 429 or None)
        command.wait_for(lambda: ask(b"one") == 429 or not slow.is_alive() or None)
        slow.join()
        command.wait_for(lambda: (command.value("headrace_requests_total", status="429") or 0) >= 1 or None)
        command.wait_for(lambda: command.value("headrace_request_latency_seconds_count") or None)
        scrape = command.scrape()
    assert scrape["headrace_requests_refused_total", (("code", "serve.busy"),)] >= 1
    answered = sum(value for (name, _), value in scrape.items() if name == "headrace_requests_total")
    refused = sum(value for (name, _), value in scrape.items() if name == "headrace_requests_refused_total")
    assert scrape["headrace_request_latency_seconds_count", ()] == answered - refused
    assert "headrace_source_jobs" in series_of(scrape)


def test_what_takes_jobs_for_a_queue() -> None:
    """Requests by status, refusals by code, their latency and the process; nothing that its rules would take for a stall."""
    with running("serve", "--queue", "sqlite:///jobs.db", "--port", "0") as command:
        url = command.wait_for(lambda: found[0] if (found := command.find(r"listening on (http://[^;]+)")) else None)
        for _ in range(3):
            with urllib.request.urlopen(f"{url}/v1/jobs", b"one", timeout=30) as answer:
                assert answer.status == 202
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{url}/v1/jobs?wait=2s", b"one", timeout=30)
        command.wait_for(lambda: (command.value("headrace_requests_total", status="400") or 0) >= 1 or None)
        scrape = command.scrape()
    assert scrape["headrace_requests_total", (("status", "202"),)] == 3
    assert scrape["headrace_requests_refused_total", (("code", "message.parameter"),)] == 1
    assert scrape["headrace_request_latency_seconds_count", ()] == 3
    assert {("headrace_workers", ()), ("headrace_workers_alive", ())} <= scrape.keys()
    assert {"headrace_run_info", "headrace_process_cpu_seconds_total", "headrace_requests_waiting"} <= series_of(scrape)
    assert "headrace_source_jobs" not in series_of(scrape)


def test_a_service_whose_workers_are_renewed() -> None:
    """SIGHUP restarts the workers: counters go on, and the new one counts as begun."""
    Path("service.py").write_text(SERVICE)
    with running("serve", "service:pipeline", "--port", "0", "--supervise", "1") as command:
        url = command.wait_for(lambda: found[0] if (found := command.find(r"listening on (http://[^;\s]+)")) else None)

        def ask() -> bool | None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/jobs", b"one", timeout=30) as answer:
                return answer.status == 200
            return None

        def answered(number: int) -> Callable[[], bool | None]:
            return lambda: (command.value("headrace_requests_total", status="200") or 0) >= number or None

        command.wait_for(ask)
        command.wait_for(answered(1))
        command.process.send_signal(signal.SIGHUP)
        command.wait_for(lambda: command.value("headrace_worker_starts_total") == 2 or None)
        command.wait_for(ask)
        command.wait_for(answered(2))
        scrape = command.scrape()
    assert scrape["headrace_worker_starts_total", ()] == 2


def test_wrong_addresses_end_it_before_it_begins() -> None:
    """A port that is taken, an address that is none: exit status 2, and no job was received."""
    send('{"n": 1}')
    with listen("0") as taken:
        for address in (str(taken.getsockname()[1]), ":9400"):
            for more in ([], ["--supervise", "1"]):
                command = [sys.executable, "-m", "headrace", "run", "app:pipeline", "--metrics", address, *more]
                ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
                assert ended.returncode == 2, ended.stderr
                assert f"--metrics {address}" in ended.stderr
    assert SqliteQueue("jobs.db").statistics().visible == 1
