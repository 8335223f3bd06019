"""A real Prometheus, as the guide sets it up, scrapes a supervised run and a service, and answers the dashboard's queries."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.monitor.metrics.counts import Counts
from headrace.monitor.metrics.exporter import Exporter
from headrace.monitor.metrics.page import Page
from headrace.monitor.metrics.server import MetricsServer, listen
from headrace.monitor.metrics.table import SERIES, Given, Kind
from headrace.monitor.rules.dashboard import list_queries
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = pytest.mark.real_clock

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "monitoring.md"
APP = """
import time
import headrace as hr

def work(batch):
    time.sleep(0.002)
    if b"bad" in batch:
        raise hr.ItemRejected("my.reason: cannot be done")
    return [len(value) for value in batch]

class Same(hr.Module):
    input = hr.BytesInput()

    def process(self, batch):
        return work(batch)

queued = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", visibility=30),
    stages=[hr.stage("look", bytes), hr.stage("work", work, kind="device")], delivery=hr.callback("RECEIVER"),
)
served = hr.Pipeline(hr.items([]), module=Same(), delivery=hr.collect())
"""
#: What neither of the two commands gives, because no canary is started, no worker dies, ...: a page that has every series does.
_ELSEWHERE = {Given.CANARY, Given.SUPERVISED, Given.MODEL, Given.DRIFT, Given.HISTORY, Given.RECORDER}
_EVERYTHING = "everything"
T = TypeVar("T")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_for(look: Callable[[], T | None], seconds: float = 60.0) -> T:
    until = time.monotonic() + seconds
    while (found := look()) is None:
        assert time.monotonic() < until
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def _running(*command: str) -> Iterator[None]:
    with Path("said.txt").open("ab") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        yield
        assert process.poll() is None, Path("said.txt").read_text()
    finally:
        process.kill()
        process.wait()


def _headrace(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *arguments]


def test_prometheus_answers_what_the_dashboard_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every panel has data, of two commands or of a page with every series; no rule is broken."""
    from headrace.testing import Receiver

    prometheus, promtool = _program("prometheus"), _program("promtool")
    monkeypatch.chdir(tmp_path)
    subprocess.run(_headrace("monitor", "rules", "-o", "alerts"), check=True, timeout=60, stdout=subprocess.DEVNULL)
    subprocess.run(_headrace("monitor", "dashboard", "-o", "alerts"), check=True, timeout=60, stdout=subprocess.DEVNULL)
    ports = {name: _free_port() for name in ("run", "serve", "http", "prometheus", _EVERYTHING)}
    Path("prometheus.yml").write_text(_configuration(ports["run"], ports["serve"], everything=ports[_EVERYTHING]))
    subprocess.run([promtool, "check", "config", "prometheus.yml"], check=True, timeout=60, stdout=subprocess.DEVNULL)
    with Receiver() as receiver, contextlib.ExitStack() as stack:
        Path("app.py").write_text(APP.replace("RECEIVER", receiver.url))
        run = _headrace(
            "run", "app.py:queued", "--supervise", "2", "--metrics", str(ports["run"]), "--allow", "127.0.0.1"
        )
        serve = _headrace("serve", "app.py:served", "--port", str(ports["http"]), "--metrics", str(ports["serve"]))
        listen = f"--web.listen-address=127.0.0.1:{ports['prometheus']}"
        queue = stack.enter_context(contextlib.closing(SqliteQueue("jobs.db")))
        queue.send([encode_job(b"good") for _ in range(50)])
        for command in (run, serve, [prometheus, "--config.file=prometheus.yml", "--storage.tsdb.path=data", listen]):
            stack.enter_context(_running(*command))
        stack.enter_context(_giving_all(ports[_EVERYTHING]))
        asks = _Asks(f"http://127.0.0.1:{ports['prometheus']}", ports["http"], queue)
        _wait_for(lambda: True if asks.is_up("up == 1", 3) else None)
        dashboard = json.loads(Path("alerts/dashboard.json").read_text())
        missing = _wait_for_panels(asks, dashboard)
        assert not missing
        groups = asks.get("/api/v1/rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) > 40
        assert {rule["health"] for rule in rules} == {"ok"}
        firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
        assert all(name.startswith("HeadraceBudgetBurn") for name in firing), firing  # a third of the jobs fails


@contextlib.contextmanager
def _giving_all(port: int) -> Iterator[None]:
    """Answer scrapes with a page on which every series of the table grows, with one value of each label."""
    page = Page()
    page.begin()
    counts, over = Counts(page), threading.Event()

    def grow() -> None:
        while not over.wait(0.2):
            page.beat()
            for name, series in SERIES.items():
                labels = tuple(label.values[0] if label.values else "one" for label in series.labels)
                if series.kind is Kind.COUNTER:
                    counts.add(name, labels)
                elif series.kind is Kind.GAUGE:
                    counts.set(name, 1.0, labels)
                else:
                    counts.observe(name, series.buckets[0], labels)

    server = MetricsServer(listen(str(port)), Exporter([page], [], counts).scrape)
    server.start()
    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        server.close()


def _configuration(*ports: int, everything: int) -> str:
    """Return the guide's prometheus.yml, with other targets, a further job that no rule looks at, and in a hurry."""
    found = re.search(r"Save this as `prometheus.yml`:\n\n((?:    .*\n)+)", GUIDE.read_text(encoding="utf-8"))
    assert found
    text = re.sub(r"^    ", "", found[1], flags=re.MULTILINE)
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    assert '["127.0.0.1:9400"]' in text
    text = text.replace("15s", "1s").replace('"127.0.0.1:9400"', targets)
    return f'{text}  - job_name: {_EVERYTHING}\n    static_configs:\n      - targets: ["127.0.0.1:{everything}"]\n'


class _Asks:
    """Asks Prometheus, and keeps the two commands busy meanwhile."""

    def __init__(self, url: str, http_port: int, queue: SqliteQueue) -> None:
        self._url = url
        self._http_port = http_port
        self._queue = queue

    def get(self, path: str, **query: str) -> Any:
        """Return what it answers."""
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)

    def values(self, expr: str) -> list[Any]:
        """Return the samples that a query has now."""
        found: list[Any] = self.get("/api/v1/query", query=expr)["data"]["result"]
        return found

    def is_up(self, expr: str, number: int) -> bool:
        """Return whether a query has so many samples, once Prometheus listens."""
        try:
            self.work()
            return len(self.values(expr)) >= number
        except OSError:
            return False

    def work(self) -> None:
        """Send a few jobs and requests, good and bad, and one with a deadline that nothing can meet: it is refused."""
        self._queue.send([encode_job(body) for body in (b"good", b"good", b"bad")])
        for body, headers in ((b"good", {}), (b"bad", {}), (b"good", {"Request-Timeout-Ms": "1"})):
            url = f"http://127.0.0.1:{self._http_port}/v1/jobs"
            request = urllib.request.Request(url, data=body, headers=headers, method="POST")
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=30):
                pass


def _wait_for_panels(asks: _Asks, dashboard: dict[str, Any]) -> list[str]:
    """Ask until each panel has data, and return those that have none after two minutes."""
    until = time.monotonic() + 120
    missing = [(title, _concrete(expr)) for title, expr in list_queries(dashboard)]
    assert len(missing) >= 60
    while missing and time.monotonic() < until:
        asks.work()
        missing = [(title, expr) for title, expr in missing if not asks.values(expr)]
    return [f"{title}: {expr}" for title, expr in missing]


def _concrete(expr: str) -> str:
    job = "headrace" if _is_given(expr) else _EVERYTHING
    return expr.replace("$__rate_interval", "10s").replace("$job", job).replace("$instance", ".*")


def _is_given(expr: str) -> bool:
    """Return whether the two commands give what a query asks for."""
    words = re.findall(r"headrace_\w+", expr)
    used = [
        series for series in SERIES.values() if any(re.fullmatch(rf"{series.name}(_bucket)?", word) for word in words)
    ]
    assert used or "burn_rate" in expr or "ALERTS" in expr, expr
    return not any(series.given in _ELSEWHERE for series in used)


def test_the_written_rules_pass_their_tests(tmp_path: Path) -> None:
    """`headrace monitor check` says so; after a threshold was changed by hand it says what is wrong."""
    _program("promtool")
    folder = str(tmp_path / "alerts")
    parameters = [
        "--objective",
        "99.9%",
        "--latency",
        "10s",
        "--latency-objective",
        "95%",
        "--late",
        "1h",
        "--job",
        "a:b/c",
    ]
    assert subprocess.run(_headrace("monitor", "rules", "-o", folder, *parameters), timeout=60).returncode == 0
    good = subprocess.run(_headrace("monitor", "check", folder), capture_output=True, text=True, timeout=200)
    assert good.returncode == 0, good.stdout
    rules = tmp_path / "alerts" / "rules.yml"
    changed = rules.read_text().replace("> 3600", "> 4000")
    assert changed != rules.read_text()
    rules.write_text(changed)
    (tmp_path / "alerts" / "tests_10m.yml").unlink()  # takes time, and has no part in it
    bad = subprocess.run(_headrace("monitor", "check", folder), capture_output=True, text=True, timeout=200)
    assert bad.returncode == 1
    assert "QueueLate" in bad.stdout
