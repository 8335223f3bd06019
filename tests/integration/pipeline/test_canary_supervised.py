"""Several workers under a supervisor agree on a canary: one folder, one state, and every job once."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.plan import ModelPlan, Plan
from headrace.base.policies.canary import CanaryPolicy
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.formats.canary import CanaryState
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = pytest.mark.real_clock

NUM_JOBS = 5_000
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

pipeline = hr.Pipeline(hr.queue("sqlite:///jobs.db"), module=Doubled(), delivery=hr.jsonl("out.jsonl"))
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


def feed_until_decided(folder: CanaryFolder, feed: Callable[[], None]) -> CanaryState:
    """Return the canary's state once it is decided; there are jobs for it to the end, however fast they go."""
    give_up_at = time.monotonic() + 240
    while (state := folder.read()) is None or state.status == "running":
        assert time.monotonic() < give_up_at, state
        feed()
        time.sleep(0.02)
    return state


@pytest.mark.full
def test_two_workers_promote_a_canary_together(tmp_path: Path) -> None:
    """Both count, one decides, both follow; whoever decided, no job is lost or answered twice."""
    (tmp_path / "app.py").write_text(APP)
    save(tmp_path / "stable.onnx")
    queue = SqliteQueue(str(tmp_path / "jobs.db"))
    numbers = itertools.count()

    def feed() -> None:
        if queue.statistics().visible < NUM_JOBS:
            queue.send([encode_job(str(n).encode(), id=f"job-{n}") for n in itertools.islice(numbers, NUM_JOBS)])

    feed()
    folder = CanaryFolder(tmp_path / "canary")
    policy = CanaryPolicy(shares=(0.0, 0.5, 1.0), max_more_failures=0.1, max_disagreement=0.1, max_slowdown=10.0)
    folder.start(Plan(model=ModelPlan(artifact=str(save(tmp_path / "same.onnx")))), policy)
    command = [sys.executable, "-m", "headrace", "run", "app.py:pipeline", "--supervise", "2", "--canary", "canary"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            state = feed_until_decided(folder, feed)
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1]
    assert state.status == "promoted", (state, said)
    assert len(re.findall(r"is open: as a shadow", said)) == 2, said
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    ids = [answer["id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert all(answer["result"] == 2.0 * int(answer["id"].removeprefix("job-")) for answer in answers)
    assert len(ids) + queue.statistics().visible == next(numbers)
    queue.close()
