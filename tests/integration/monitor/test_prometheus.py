"""A real Prometheus scrapes a real run, and promtool finds nothing wrong with what it gets."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.monitor.scraped import Command, delivered, running, send

APP = """
import headrace as hr

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db"), stages=[hr.stage("same", lambda value: value)], delivery=hr.jsonl("out.jsonl"),
)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """A supervised run that has delivered ten jobs."""
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        pytest.skip("prometheus is not installed; apt-get install prometheus")
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    send(*['{"n": 1}'] * 10)
    with running("run", "app:pipeline", "--supervise", "2") as found:
        found.wait_for(delivered(found, 10))
        yield found


@pytest.fixture
def prometheus(command: Command) -> Iterator[str]:
    """The address of a Prometheus that scrapes the run every 200 ms."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    target = command.url.removeprefix("http://").removesuffix("/metrics")
    Path("prometheus.yml").write_text(
        "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\nscrape_configs:\n  - job_name: headrace\n"
        f'    static_configs:\n      - targets: ["{target}"]\n'
    )
    arguments = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    arguments.append("--enable-feature=exemplar-storage")
    with (
        open("prometheus.txt", "wb") as log,
        subprocess.Popen(["prometheus", *arguments], stdout=log, stderr=log) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def ask(prometheus: str, path: str, **parameters: str) -> Any:
    """Return the data of an answer; None while there is none."""
    try:
        with urllib.request.urlopen(
            f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10
        ) as got:
            return json.load(got)["data"]
    except OSError:
        return None


def test_prometheus_scrapes_a_run(command: Command, prometheus: str) -> None:
    """It is up, its values are those of the run, the types are known, and an exemplar names a job."""

    def delivered_jobs() -> list[Any] | None:
        found = ask(prometheus, "query", query='headrace_jobs_total{outcome="delivered"}')
        return found["result"] if found and found["result"] else None

    (jobs,) = command.wait_for(delivered_jobs)
    assert jobs["value"][1] == "10"
    assert ask(prometheus, "query", query="up")["result"][0]["value"][1] == "1"
    assert ask(prometheus, "query", query="sum(headrace_workers_alive)")["result"][0]["value"][1] == "2"
    # OpenMetrics names the family of a counter without its suffix.
    types = {name.removesuffix("_total"): one[0]["type"] for name, one in ask(prometheus, "metadata").items()}
    assert types["headrace_jobs"] == "counter"
    assert types["headrace_job_latency_seconds"] == "histogram"
    now = time.time()
    window = {"start": str(now - 60), "end": str(now + 60)}
    exemplars = ask(prometheus, "query_exemplars", query="headrace_job_latency_seconds_bucket", **window)
    assert exemplars, "no exemplar was kept"
    assert exemplars[0]["exemplars"][0]["labels"]["job"]


def test_the_queries_of_the_guide_are_queries(command: Command, prometheus: str) -> None:
    """Each of the table in docs/guides/monitoring.md is understood, and those of a run like this one have an answer."""
    guide = Path(__file__).parents[3] / "docs" / "guides" / "monitoring.md"
    rows = re.findall(r"^\| [A-Za-z ]+\? \| (.+) \|$", guide.read_text(), re.MULTILINE)
    queries = [query for row in rows for query in re.findall("`([^`]+)`", row)]
    assert len(queries) >= len(rows) > 5
    command.wait_for(lambda: ((found := ask(prometheus, "query", query="up")) and found["result"]) or None)
    answers = {query: ask(prometheus, "query", query=query) for query in queries}
    assert None not in answers.values(), answers
    assert answers["headrace_plan_info"]["result"]


def test_promtool_finds_nothing_wrong(command: Command) -> None:
    """Names, units and help texts are as Prometheus wants them."""
    with urllib.request.urlopen(command.url, timeout=30) as answer:
        text = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr.decode()
    assert not checked.stderr, checked.stderr.decode()
