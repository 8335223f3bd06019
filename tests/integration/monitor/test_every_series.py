"""The table of series is what real runs give: every series of it appears in one, and none appears that it has not."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.plan import ModelPlan, Plan
from headrace.base.policies.canary import CanaryPolicy
from headrace.monitor.metrics.table import SERIES, Given, Kind
from headrace.runs.canary_folder import CanaryFolder
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue
from tests.integration.monitor.scraped import find_workers, running, series_of

#: Given by parts whose own tests look for them; see `Given`.
ELSEWHERE = {Given.DRIFT, Given.HISTORY, Given.PROVED, Given.RECORDER}
APP = """
import numpy as np
import headrace as hr

class Doubled(hr.Module):
    model = "stable.onnx"
    input = hr.BytesInput()
    output = hr.Numbers()

    def load(self, context):
        self.double = context.open_model()

    def preprocess(self, value):
        return np.array([float(value)], np.float32)

    def process(self, batch):
        return [float(value) for value in self.double(batch)[:, 0]]

pipeline = hr.Pipeline(hr.queue("sqlite:///jobs.db"), module=Doubled(), delivery=hr.callback())
"""


def save(path: Path) -> Path:
    """Write a model that doubles numbers."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["y"])], "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.float32(2), "two")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def refused_address() -> str:
    """Return an address of a receiver that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/done"


def served() -> set[str]:
    """Return the series of a service that was asked something that is no request."""
    with running("serve", "app.py:pipeline", "--port", "0") as command:
        port = command.wait_for(
            lambda: found[0] if (found := command.find(r"listening on http://127.0.0.1:(\d+)")) else None
        )
        with socket.create_connection(("127.0.0.1", int(port))) as client:
            client.sendall(b"\0\r\n\r\n")
        wanted = {"headrace_requests_refused_total", "headrace_requests_total", "headrace_requests_waiting"}
        return command.wait_for(lambda: series if wanted <= (series := series_of(command.scrape())) else None)


def supervised() -> set[str]:
    """Return the series of a supervised run with a model, a canary, bad jobs and a receiver that does not answer."""
    CanaryFolder(Path("canary")).start(
        Plan(model=ModelPlan(artifact=str(save(Path("same.onnx").absolute())))),
        CanaryPolicy(shares=(0.5, 1.0), max_more_failures=1e-6),
    )
    queue = SqliteQueue("jobs.db")
    queue.send([encode_job(str(number).encode(), callback=refused_address()) for number in range(300)])
    queue.send([encode_job(b"no number")])
    arguments = ("--supervise", "1", "--canary", "canary", "--allow", "127.0.0.1")
    found: set[str] = set()
    with running("run", "app.py:pipeline", *arguments) as command:

        def more() -> set[str]:
            found.update(series_of(command.scrape()))
            return found

        command.wait_for(lambda: {"headrace_canary_jobs_total", "headrace_job_failures_total"} <= more() or None)
        os.kill(find_workers(command)[0], signal.SIGKILL)
        command.wait_for(lambda: command.value("headrace_worker_deaths_total", cause="killed") or None)
        return more()


def delivered_for_long() -> set[str]:
    """Return the series of a run that has delivered for ten seconds."""
    Path("steady.py").write_text(
        "import time\nimport headrace as hr\n"
        "def work(value):\n    time.sleep(0.02)\n    return 1\n"
        'pipeline = hr.Pipeline(hr.queue("sqlite:///steady.db"), stages=[hr.stage("work", work, kind="io")],\n'
        '                       delivery=hr.jsonl("steady.jsonl"))\n'
    )
    queue = SqliteQueue("steady.db")
    queue.send([encode_job(json.dumps(number)) for number in range(20_000)])
    with running("run", "steady:pipeline", "--set", "work.workers=1") as command:
        wanted = command.wait_for(lambda: command.value("headrace_wanted_workers"))
        assert wanted > 1  # a backlog of many minutes
        return series_of(command.scrape())


@pytest.mark.full
def test_every_series_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`series_of` fails where a scrape has one that the table has not."""
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    save(Path("stable.onnx"))
    found = served() | supervised() | delivered_for_long()
    wanted = {name for name, series in SERIES.items() if series.given not in ELSEWHERE}
    assert wanted <= found
    published = set(SERIES) - wanted
    assert found - wanted <= published
    assert all(SERIES[name].kind is not Kind.HISTOGRAM for name in published), "a part publishes one number"
