"""Canaries beside a running pipeline: honest ones are promoted, others rolled back, and no job is lost or answered wrongly."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import headrace as hr
from headrace.base.plan import ModelPlan, Plan
from headrace.base.policies.canary import CanaryPolicy
from headrace.delivery.collect import Collect
from headrace.pipeline import canary
from headrace.pipeline.canary import CanaryPlace
from headrace.pipeline.execute import Result, run
from headrace.runs.canary_folder import CallMark, CanaryFolder
from headrace.runs.formats.canary import CanaryState
from headrace.runs.reader import read_run
from headrace.sources.finite import Entry, FiniteSource
from headrace.validate.canary import make_judges

#: More than any of these tests needs; the runs are stopped.
MOST = 10_000_000
#: Where the numbers pause until somebody opens the gate.
PAUSE = 3000
#: Wide margins: what is tested is what is done, not how soon it is known.
WIDE = {"max_more_failures": 0.1, "max_disagreement": 0.1, "max_slowdown": 3.0}
HALF = CanaryPolicy(shares=(0.5, 1.0), **WIDE)  # type: ignore[arg-type]
HALF_AND_HOLD = CanaryPolicy(shares=(0.5, 1.0), max_more_failures=1e-6)
ALL_STEPS = CanaryPolicy(shares=(0.0, 0.1, 0.5, 1.0), **WIDE)  # type: ignore[arg-type]


class Numbers(FiniteSource):
    """Numbers from 1 on, as many as are asked for."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        for number in range(MOST):
            if number == PAUSE:
                self._gate.wait(60)
            yield Entry(str(number), np.float32([number + 1]))


class Scaled(hr.Module):
    """Multiplies by what its model holds."""

    input = hr.ArrayInput()
    output = hr.Numbers()

    def __init__(self, model: Path) -> None:
        self.model = model

    def load(self, context: Any) -> None:
        """Open the model."""
        self.scale = context.open_model()

    def process(self, batch: np.ndarray) -> Sequence[float]:
        """Return the products."""
        time.sleep(0.001)  # or the run would be over before anybody looked
        return [float(value) for value in self.scale(batch)[:, 0]]


def save(path: Path, factor: float) -> Path:
    """Write a model that multiplies by a factor."""
    return write(path, [helper.make_node("Mul", ["x", "factor"], ["y"])], factor=np.float32(factor))


def save_slow(path: Path) -> Path:
    """Write one that returns what it is given, after much arithmetic."""
    nodes = [
        helper.make_node("MatMul", ["x", "row"], ["wide"]),
        helper.make_node("MatMul", ["wide", "square"], ["product"]),
        helper.make_node("ReduceMax", ["product"], ["zero"], axes=[1], keepdims=1),
        helper.make_node("Add", ["x", "zero"], ["y"]),
    ]
    return write(path, nodes, row=np.ones((1, 800), np.float32), square=np.zeros((800, 800), np.float32))


def save_short(path: Path) -> Path:
    """Write one that returns what it is given, and fails from the number of the pause on."""
    nodes = [
        helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["numbers", "index"], ["y"]),
    ]
    return write(path, nodes, numbers=np.arange(PAUSE + 1, dtype=np.float32))


def write(path: Path, nodes: Sequence[onnx.NodeProto], **constants: np.ndarray | np.float32) -> Path:
    """Write a model from x to y, float32 (batch, 1)."""
    graph = helper.make_graph(
        nodes, "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@dataclass
class Live:
    """A pipeline that runs until it is told to stop, and what came of it."""

    folder: CanaryFolder
    stop: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    recorded: list[CanaryState] = field(default_factory=list)
    delivered: list[tuple[str, float]] = field(default_factory=list)
    result: Result | None = None

    def wait_for(self, condition: Callable[[CanaryState], bool]) -> CanaryState:
        """Return the state once it is so."""
        give_up_at = time.monotonic() + 240
        while (state := self.folder.read()) is None or not condition(state):
            assert time.monotonic() < give_up_at, (state, self.said)
            time.sleep(0.005)
        return state

    def wait_for_end(self) -> CanaryState:
        """Return the state when the canary was promoted or rolled back."""
        return self.wait_for(lambda state: state.status != "running")

    def wait_for_more(self, number: int) -> None:
        """Wait until so many more results have come."""
        goal, give_up_at = len(self.delivered) + number, time.monotonic() + 240
        while len(self.delivered) < goal:
            assert time.monotonic() < give_up_at
            time.sleep(0.005)


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is looked at often."""
    monkeypatch.setattr(canary, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(canary, "JUDGE_SECONDS", 0.05)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A pipeline that multiplies by 1, in batches of 8 at most."""
    found = Live(CanaryFolder(tmp_path / "canary"))
    delivery = Collect()
    found.delivered = delivery.results
    found.gate.set()
    pipeline = hr.Pipeline(Numbers(found.gate), module=Scaled(save(tmp_path / "stable.onnx", 1.0)), delivery=delivery)
    plan = Plan().with_settings(["process.batch=8", "stages.process.queue_items=64"])
    place = CanaryPlace(
        folder=found.folder.path, judges=make_judges(), record=found.recorded.append, say=found.said.append
    )

    def work() -> None:
        found.result = run(pipeline, plan, output=tmp_path / "run", beside=place, stop=found.stop, checkpoint=False)

    thread = threading.Thread(target=work)
    thread.start()
    yield found
    found.stop.set()
    found.gate.set()
    thread.join(60)
    assert not thread.is_alive()


def finish(live: Live) -> Result:
    """Stop the run and return its result."""
    live.stop.set()
    give_up_at = time.monotonic() + 240
    while live.result is None:
        assert time.monotonic() < give_up_at
        time.sleep(0.005)
    return live.result


def start(live: Live, model: Path, policy: CanaryPolicy = HALF) -> CanaryState:
    """Start a canary with another model file."""
    return live.folder.start(Plan(model=ModelPlan(artifact=str(model))), policy)


def factors(live: Live) -> np.ndarray:
    """Return by what each job was multiplied."""
    return np.array([value / (int(id_) + 1) for id_, value in live.delivered])


def assert_none_lost(live: Live) -> None:
    """Every job that was received was delivered once."""
    ids = [int(id_) for id_, _ in live.delivered]
    assert sorted(ids) == list(range(len(ids)))


@pytest.mark.smoke
def test_an_honest_canary_is_promoted_step_by_step(live: Live, tmp_path: Path) -> None:
    """Shadow, 10 %, 50 %, all; spans name the Plan that answered, and no batch holds both arms."""
    start(live, save(tmp_path / "same.onnx", 1.0), ALL_STEPS)
    state = live.wait_for_end()
    live.wait_for_more(200)
    result = finish(live)
    assert state.status == "promoted", state
    assert [step.share for step in state.steps] == [0.0, 0.1, 0.5, 1.0]
    assert [one.steps[-1].act for one in live.recorded] == ["step", "step", "promoted"]
    assert list(result.plans) == [state.stable_plan_id, state.plan_id]
    assert_none_lost(live)
    spans = [span for span in read_run(tmp_path / "run").spans().to_pylist() if span["stage"] == "process"]
    assert {span["plan_id"] for span in spans} == {state.stable_plan_id, state.plan_id}
    assert {span["plan_id"] for span in spans[-50:]} == {state.plan_id}
    by_batch = itertools.groupby(sorted(spans, key=lambda span: span["batch_id"]), key=lambda span: span["batch_id"])
    assert all(len({span["plan_id"] for span in batch}) == 1 for _, batch in by_batch)


def test_a_wrong_canary_is_rolled_back_as_a_shadow(live: Live, tmp_path: Path) -> None:
    """It multiplies by 3: nobody gets such an answer."""
    start(live, save(tmp_path / "wrong.onnx", 3.0), ALL_STEPS)
    state = live.wait_for_end()
    live.wait_for_more(50)
    finish(live)
    assert state.status == "rolled back"
    assert state.reason.startswith("answers: ")
    assert_none_lost(live)
    assert np.allclose(factors(live), 1.0)


def test_a_nan_takes_it_back_at_once(live: Live, tmp_path: Path) -> None:
    """The stable model answers that very batch in its place: no NaN is delivered."""
    start(live, save(tmp_path / "nan.onnx", float("nan")))
    state = live.wait_for_end()
    live.wait_for_more(50)
    finish(live)
    assert state.reason.startswith("broken: ")
    assert_none_lost(live)
    assert np.allclose(factors(live), 1.0)


def test_a_slow_canary_is_rolled_back(live: Live, tmp_path: Path) -> None:
    """Its answers are right and take many times as long, on the same batches."""
    start(live, save_slow(tmp_path / "slow.onnx"))
    state = live.wait_for_end()
    assert state.status == "rolled back", state
    assert state.reason.startswith("latency: ")
    assert {found.metric: found.verdict for found in state.findings}["answers"] != "worse"


def test_jobs_that_the_canary_fails_are_answered_by_the_stable_model(live: Live, tmp_path: Path) -> None:
    """From some job on it fails each: it is taken back soon, and not one job is lost or tried again for it."""
    live.gate.clear()
    strict = CanaryPolicy(shares=(0.5, 1.0), max_more_failures=1e-6, max_disagreement=0.1, max_slowdown=3.0)
    state = start(live, save_short(tmp_path / "short.onnx"), strict)
    live.wait_for(lambda state: bool(state.plan_id))
    live.gate.set()
    state = live.wait_for_end()
    live.wait_for_more(50)
    result = finish(live)
    assert state.status == "rolled back", state
    assert state.reason.startswith(("failures: ", "answers: ")), state.reason
    assert_none_lost(live)
    assert np.allclose(factors(live), 1.0)
    assert result.counters.delivered == result.counters.received
    assert result.counters.retried == 0


def test_a_canary_that_cannot_be_opened_changes_nothing(live: Live, tmp_path: Path) -> None:
    """The reason is in the state, and the run goes on."""
    (tmp_path / "torn.onnx").write_bytes(b"no model")
    start(live, tmp_path / "torn.onnx")
    state = live.wait_for_end()
    live.wait_for_more(50)
    finish(live)
    assert state.reason.startswith("open: ")
    assert_none_lost(live)


@pytest.mark.parametrize("content", ["{", None], ids=["damaged", "gone"])
def test_a_state_that_cannot_be_read_takes_the_canary_back(live: Live, tmp_path: Path, content: str | None) -> None:
    """Nobody could say any more what is wanted of it: the stable model answers, and no job suffers."""
    start(live, save(tmp_path / "same.onnx", 1.0))
    state = live.wait_for(lambda state: state.status == "promoted")
    live.wait_for_more(50)
    file = live.folder.path / "state.json"
    file.unlink() if content is None else file.write_text(content)
    give_up_at = time.monotonic() + 240
    while not live.said[-1].endswith("the stable model answers all jobs"):
        assert time.monotonic() < give_up_at, live.said
        time.sleep(0.005)
    live.wait_for_more(200)  # what was on its way is through
    finish(live)
    assert_none_lost(live)
    spans = [span for span in read_run(tmp_path / "run").spans().to_pylist() if span["stage"] == "process"]
    assert {span["plan_id"] for span in spans[-50:]} == {state.stable_plan_id}


def test_a_canary_has_the_batches_of_its_plan(live: Live, tmp_path: Path) -> None:
    """The run's batches hold up to 8; the canary's never more than 3, until it is taken back."""
    plan = Plan(model=ModelPlan(artifact=str(save(tmp_path / "same.onnx", 1.0)))).with_settings(["process.batch=3"])
    live.folder.start(plan, HALF)
    state = live.wait_for(lambda state: state.status == "promoted")
    live.wait_for_more(200)
    finish(live)
    assert_none_lost(live)
    spans = [span for span in read_run(tmp_path / "run").spans().to_pylist() if span["stage"] == "process"]
    sizes = {
        arm: {one["batch_size"] for one in spans if one["plan_id"] == arm}
        for arm in (state.plan_id, state.stable_plan_id)
    }
    assert max(sizes[state.plan_id]) == 3
    assert max(sizes[state.stable_plan_id]) == 8


def test_a_key_needs_a_run_of_one_process(live: Live, tmp_path: Path) -> None:
    """Another worker that has the folder sees other jobs of the same keys: the canary is rolled back, and that is said."""
    mark = CallMark(CanaryFolder(live.folder.path))
    start(live, save(tmp_path / "same.onnx", 1.0), CanaryPolicy(shares=(0.5, 1.0), key="camera"))
    state = live.wait_for_end()
    mark.close()
    finish(live)
    assert state.status == "rolled back"
    assert "its key camera is drawn in runs of one process, and 2 share" in state.reason


def test_a_clock_that_is_ahead_keeps_nobody_from_judging(live: Live, tmp_path: Path) -> None:
    """Of a machine that judged last, an hour from now; the canary goes on as if it had not."""
    start(live, save(tmp_path / "same.onnx", 1.0), HALF_AND_HOLD)
    live.wait_for(lambda state: bool(state.plan_id))
    with live.folder.locked():
        state = live.folder.read()
        assert state is not None
        ahead = time.time() + 3600
        live.folder.write(msgspec.structs.replace(state, judged_unix_seconds=ahead, since_unix_seconds=ahead))
    live.wait_for(lambda state: 0 < state.judged_unix_seconds < ahead - 1800)
    finish(live)
    assert_none_lost(live)


def test_a_canary_for_a_stage_that_is_not_there_is_rolled_back(live: Live, tmp_path: Path) -> None:
    """The reason names the stages that take batches."""
    plan = Plan(model=ModelPlan(artifact=str(save(tmp_path / "same.onnx", 1.0)))).with_settings(["faces.batch=3"])
    live.folder.start(plan, HALF)
    state = live.wait_for_end()
    finish(live)
    assert state.status == "rolled back"
    assert "stages.faces.batch" in state.reason
    assert "expected one of process" in state.reason


def test_a_rollback_by_hand_is_taken_up(live: Live, tmp_path: Path) -> None:
    """Also of a canary that was promoted: both models stay open."""
    start(live, save(tmp_path / "same.onnx", 1.0))
    live.wait_for(lambda state: state.status == "promoted")
    live.wait_for_more(50)
    with live.folder.locked():
        state = live.folder.read()
        assert state is not None
        live.folder.write(state.done("rolled back", time.time(), "a test", "user"))
    give_up_at = time.monotonic() + 240
    while not live.said[-1].endswith("rolled back, 0% of the jobs: a test"):
        assert time.monotonic() < give_up_at, live.said
        time.sleep(0.005)
    live.wait_for_more(200)  # what was on its way is through
    result = finish(live)
    assert_none_lost(live)
    spans = [span for span in read_run(result.run_folder or "").spans().to_pylist() if span["stage"] == "process"]
    assert {span["plan_id"] for span in spans[-50:]} == {state.stable_plan_id}


def test_a_worker_that_dies_in_a_call_of_the_canary_takes_it_back(live: Live, tmp_path: Path) -> None:
    """Another process marks a call, as a worker does, and is killed: all workers go back to the stable model."""
    start(live, save(tmp_path / "same.onnx", 1.0), HALF_AND_HOLD)
    live.wait_for(lambda state: bool(state.plan_id))
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from headrace.runs.canary_folder import CallMark, CanaryFolder\n"
        "with CallMark(CanaryFolder(Path(sys.argv[1]))):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(live.folder.path)], check=False)
    state = live.wait_for_end()
    live.wait_for_more(50)
    finish(live)
    assert state.status == "rolled back"
    assert state.reason.startswith("death: ")
    assert_none_lost(live)
