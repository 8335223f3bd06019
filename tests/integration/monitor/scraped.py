"""Real commands with `--metrics`, and what they answer to scrapes."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from headrace.monitor.metrics.table import SERIES
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
T = TypeVar("T")
Sample = tuple[str, tuple[tuple[str, str], ...]]


def send(*orders: str) -> None:
    """Put jobs into the queue."""
    queue = SqliteQueue("jobs.db")
    queue.send([encode_job(order) for order in orders])
    queue.close()


class Command:
    """A `headrace` command with metrics, in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "headrace", *arguments, "--metrics", "0"]
        self.said = open("said.txt", "w+b")  # noqa: SIM115 - read while it is written
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.said)
        self.url = self.wait_for(lambda: found[0] if (found := self.find(r"http://\S+/metrics")) else None)

    def find(self, pattern: str) -> list[str]:
        """Return what it said that looks like a pattern."""
        return re.findall(pattern, Path("said.txt").read_text())

    def wait_for(self, look: Callable[[], T | None]) -> T:
        """Look until there is something, and return it."""
        until = time.monotonic() + 60
        while (found := look()) is None:
            assert self.process.poll() is None, Path("said.txt").read_text()
            assert time.monotonic() < until, Path("said.txt").read_text()
            time.sleep(0.05)
        return found

    def scrape(self) -> dict[Sample, float]:
        """Return what a scrape has; it is valid, and has no sample twice."""
        request = urllib.request.Request(self.url, headers={"Accept": OPEN_METRICS})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        samples = [
            ((sample.name, tuple(sample.labels.items())), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
        twice = [sample for sample, number in Counter(name for name, _ in samples).items() if number > 1]
        assert not twice
        return dict(samples)

    def value(self, name: str, **labels: str) -> float | None:
        """Return one value; None: it is not there."""
        return self.scrape().get((name, tuple(labels.items())))

    def end(self) -> None:
        """End it as a service manager does; 1: it delivered nothing."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) in (0, 1, 130), Path("said.txt").read_text()


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Command]:
    """Run a command, and see that it is gone at the end."""
    command = Command(*arguments)
    try:
        yield command
        command.end()
    finally:
        command.process.kill()
        command.process.wait()
        command.said.close()


def series_of(scrape: dict[Sample, float]) -> set[str]:
    """Return the series of the table that a scrape has; all that it has are of the table."""
    found = set()
    for name, _ in scrape:
        stems = [name, *(name.removesuffix(part) for part in ("_bucket", "_sum", "_count"))]
        (series,) = [stem for stem in dict.fromkeys(stems) if stem in SERIES]
        found.add(series)
    return found


def delivered(command: Command, number: int) -> Callable[[], bool | None]:
    """Return whether so many jobs have been delivered."""
    return lambda: (command.value("headrace_jobs_total", task="", outcome="delivered") or 0) >= number or None


def children(process: int) -> list[int]:
    """Return the children of a process."""
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def find_keeper(command: Command) -> int:
    """Return the process beside a supervisor's workers that keeps the exporter, its child."""
    return command.wait_for(lambda: next((pid for pid in children(command.process.pid) if children(pid)), None))


def find_workers(command: Command) -> list[int]:
    """Return the worker processes of a supervisor."""
    keeper = find_keeper(command)
    return [pid for pid in children(command.process.pid) if pid != keeper]
