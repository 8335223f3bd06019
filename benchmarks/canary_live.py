"""How soon a pipeline that runs takes a canary back: by hand, after a NaN, and when a worker dies within its call.

A source gives numbers without end, a model returns them, and half of the jobs fall to a canary that does the same. Then, again
and again: somebody types a rollback; the canary answers with NaNs from some number on; another worker of the run marks a call
of the canary's model, as workers do, and kills itself. `written` is when the state says so, `last` when the canary's last batch
was begun, both counted from the deed. At the end each number must have come back once, and unchanged.

    python -m benchmarks.canary_live --write    # a minute
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import headrace as hr
from benchmarks import measure
from headrace.base.plan import ModelPlan, Plan
from headrace.base.policies.canary import CanaryPolicy
from headrace.delivery.collect import Collect
from headrace.pipeline.canary import CanaryPlace
from headrace.pipeline.execute import run
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.formats.canary import CanaryState
from headrace.runs.reader import read_run
from headrace.sources.finite import Entry, FiniteSource
from headrace.validate.canary import make_judges

#: It stays at half of the jobs: so little is acceptable that nothing shows it.
POLICY = CanaryPolicy(shares=(0.5, 1.0), max_more_failures=1e-6, max_disagreement=0.1, max_slowdown=3.0)
_PATIENCE_SECONDS = 60.0
_JOBS_BETWEEN = 400
_DIES = """
import os, signal, sys, time
from pathlib import Path
from headrace.runs.canary_folder import CallMark, CanaryFolder
with CallMark(CanaryFolder(Path(sys.argv[1]))):
    print(time.monotonic_ns(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Numbers(FiniteSource):
    """Numbers from 1 on, at most 4,000 a second."""

    last = 0

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        for number in range(10**9):
            if number % 8 == 0:
                time.sleep(0.002)
            self.last = number
            yield Entry(str(number), np.float32([number + 1]))


class Same(hr.Module):
    """Returns what its model does."""

    input = hr.ArrayInput()
    output = hr.Numbers()

    def __init__(self, model: Path) -> None:
        self.model = model

    def load(self, context: Any) -> None:
        """Open the model."""
        self.same = context.open_model()

    def process(self, batch: np.ndarray) -> Sequence[float]:
        """Return the numbers."""
        return [float(value) for value in self.same(batch)[:, 0]]


def save(path: Path, nan_above: float = np.inf) -> Path:
    """Write a model that returns its input, and a NaN for what is above a number."""
    nodes = [
        helper.make_node("Greater", ["x", "most"], ["above"]),
        helper.make_node("Where", ["above", "nan", "x"], ["y"]),
    ]
    constants = {"most": np.float32(nan_above), "nan": np.float32("nan")}
    shape = ["batch", 1]
    graph = helper.make_graph(
        nodes, "same",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@dataclass(frozen=True)
class Deed:
    """Something for which a canary went back.

    Attributes:
        plan_id: Of the canary.
        at_ns: When it was done, on the host's monotonic clock; None: when the first number above `above` was taken up.
        above: Numbers that the canary answers with a NaN.
        written_ns: When the state was written that says so.
    """

    plan_id: str
    at_ns: int | None
    above: float
    written_ns: int


class Bench:
    """One run, and what is done to its canaries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canaries = CanaryFolder(folder / "canary")
        self.source, self.delivery = Numbers(), Collect()
        self._number = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the pipeline meanwhile."""
        stop = threading.Event()
        pipeline = hr.Pipeline(self.source, module=Same(save(self.folder / "stable.onnx")), delivery=self.delivery)
        plan = Plan().with_settings(["process.batch=8", "stages.process.queue_items=64"])
        place = CanaryPlace(folder=self.canaries.path, judges=make_judges())
        options = {"output": self.folder / "run", "beside": place, "stop": stop, "checkpoint": False}
        thread = threading.Thread(target=run, args=(pipeline, plan), kwargs=options)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def take_back(self, kind: str) -> Deed:
        """Start a canary, give it a reason to go back, and return when what was."""
        self._number += 1
        above = self.source.last + 4_000.0 if kind == "nan" else np.inf
        model = save(self.folder / f"{kind}-{self._number}.onnx", above)
        self.canaries.start(Plan(model=ModelPlan(artifact=str(model))), POLICY)
        state = self._wait(lambda state: bool(state.plan_id))
        self.wait_for_jobs()
        at_ns = {"nan": lambda: None, "hand": self._by_hand, "death": self._by_death}[kind]()
        state = self._wait(lambda state: state.status == "rolled back")
        unix_to_monotonic_ns = time.monotonic_ns() - time.time_ns()
        self.wait_for_jobs()
        return Deed(state.plan_id, at_ns, above, round(state.steps[-1].at_unix_seconds * 1e9) + unix_to_monotonic_ns)

    def _by_hand(self) -> int:
        at_ns = time.monotonic_ns()
        with self.canaries.locked():
            state = self.canaries.read()
            assert state is not None
            self.canaries.write(state.done("rolled back", time.time(), "tried", "user"))
        return at_ns

    def _by_death(self) -> int:
        command = [sys.executable, "-c", _DIES, str(self.canaries.path)]
        return int(subprocess.run(command, capture_output=True, text=True, check=False).stdout)

    def _wait(self, is_so: Callable[[CanaryState], bool]) -> CanaryState:
        until = time.monotonic() + _PATIENCE_SECONDS
        while (state := self.canaries.read()) is None or not is_so(state):
            if time.monotonic() > until:
                raise TimeoutError(f"the canary stands where it stood a minute ago: {state}")
            time.sleep(0.002)
        return state

    def wait_for_jobs(self) -> None:
        """Wait until some hundred more have come back."""
        goal, until = len(self.delivery.results) + _JOBS_BETWEEN, time.monotonic() + _PATIENCE_SECONDS
        while len(self.delivery.results) < goal:
            if time.monotonic() > until:
                raise TimeoutError("no more results came for a minute")
            time.sleep(0.002)

    def lasted(self, deeds: Sequence[Deed]) -> dict[str, Any]:
        """Return the milliseconds from each deed to the state and to the canary's last batch, 0 where that was before it."""
        spans = [span for span in read_run(self.folder / "run").spans().to_pylist() if span["stage"] == "process"]
        written, last = [], []
        for deed in deeds:
            reached = (span["started"] for span in spans if int(span["unit_id"]) + 1 > deed.above)
            at_ns = min(reached) if deed.at_ns is None else deed.at_ns
            written.append((deed.written_ns - at_ns) / 1e6)
            begun = max(span["started"] for span in spans if span["plan_id"] == deed.plan_id)
            last.append(max(0.0, (begun - at_ns) / 1e6))
        return {"times": len(deeds), "written_ms": measure_of(written), "last_ms": measure_of(last)}

    def wrong(self) -> int:
        """Return how many numbers did not come back once, and unchanged."""
        seen = [0] * (self.source.last + 1)
        for id_, value in self.delivery.results:
            seen[int(id_)] += value == int(id_) + 1
        came = max(int(id_) for id_, _ in self.delivery.results) + 1
        return sum(count != 1 for count in seen[:came]) + len(self.delivery.results) - came


def measure_of(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the largest."""
    return {"median": float(np.median(values)), "max": float(max(values))}


def measure_all(quick: bool) -> dict[str, Any]:
    """Run everything and return the benchmark's object."""
    times = 2 if quick else 15
    with tempfile.TemporaryDirectory(prefix="canary-") as folder, measure.Window() as window:
        bench = Bench(Path(folder))
        with bench.running():
            bench.wait_for_jobs()
            deeds = {kind: [bench.take_back(kind) for _ in range(times)] for kind in ("hand", "nan", "death")}
        found = {kind: bench.lasted(some) for kind, some in deeds.items()}
        jobs, wrong = len(bench.delivery.results), bench.wrong()
    return {**found, "jobs": jobs, "lost_or_wrong": wrong, "foreign_cores": window.foreign_cores, "quick": quick}


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    names = {"hand": "a rollback is typed", "nan": "its first NaN", "death": "a worker dies within its call"}
    lines = [
        "# How soon a canary is taken back",
        "",
        "Milliseconds, median and longest, in one run in which half of the jobs fell to canaries.",
        "",
        "| after | times | until its last batch was begun | until the state said so |",
        "|---|---|---|---|",
    ]
    for kind, name in names.items():
        one = result[kind]
        figures = [f"{one[key]['median']:.1f}, {one[key]['max']:.1f}" for key in ("last_ms", "written_ms")]
        lines.append(f"| {name} | {one['times']} | {' | '.join(figures)} |")
    lines += [
        "",
        f"Of {result['jobs']:,} jobs {result['lost_or_wrong']} were lost, came twice or were answered wrongly.",
        f"Others took {result['foreign_cores']:.2f} cores.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("canary_live", __doc__.splitlines()[0], measure_all, as_text)
