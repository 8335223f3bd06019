"""Stage benchmarks of emulated parts, whose answers are known.

Others may use the machine, and it may be held back: sleeping takes at least as long as was asked, and a rate is at most what
the sleeping allows. Only these bounds are certain, and orders that no neighbour turns round.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.page_cache import evict
from headrace.base.plan import Plan
from headrace.base.records import OutcomeKind
from headrace.pipeline.thread_budget import usable_cores
from headrace.profiler.stage_bench import as_text, isolate, residency
from headrace.profiler.stage_bench.inputs import collect
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts
from headrace.profiler.stage_bench.scaling import Effort, measure_alone
from headrace.profiler.stage_bench.stage_run import Setting, Stretch, run_stretches
from headrace.runs.formats.isolation import IsolationDocument, StageAlone
from headrace.stages.stage import Stage, StageContext
from headrace.testing import ListSource


def count_up(value: Any) -> Any:
    """Return the value after some pure Python."""
    for _ in range(20_000):
        pass
    return value


class Emulated(hr.Module):
    """Asks the emulated device."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open the device."""
        self.model = context.open_model()

    def process(self, batch: Any) -> list[float]:
        """Return its answers."""
        return [float(answer) for answer in self.model(batch)[:, 0]]


def alone(stage: Stage, payloads: list[Any], table: dict[str, Any] | None = None, seconds: float = 0.3) -> StageAlone:
    """Return one stage alone."""
    plan = Plan.from_table(table or {})
    parts = PipelineParts.of(hr.Pipeline(source=ListSource(payloads), stages=[stage]), plan)
    inputs = collect(parts, len(payloads), lambda: False)
    return measure_alone(parts, inputs.stages[stage.name], Effort(seconds, 2, lambda: False, lambda text: None))


@pytest.mark.measures
def test_a_sleeping_stage_costs_waiting_and_no_cpu() -> None:
    """20 ms asleep: waiting of 20 ms at least, hardly any CPU beside it, and a curve that rises with the workers."""
    found = alone(hr.emulated("fetch", seconds=0.02, kind="io"), [b"x"] * 8, {"stages": {"fetch": {"workers": 4}}})
    assert found.cpu_demand is not None
    assert found.wait_demand is not None
    assert found.wait_demand > 0.95 * 0.02
    assert found.cpu_demand < 0.5 * found.wait_demand
    assert [point.workers for point in found.curve] == [1, 2, 4, 8]
    assert all(point.throughput < 1.1 * point.workers / 0.02 for point in found.curve)
    assert found.curve[-1].throughput > 2 * found.curve[0].throughput


@pytest.mark.measures
@pytest.mark.skipif(usable_cores() == 1, reason="one core shows no difference between a lock and a core")
def test_pure_python_is_seen_to_hold_the_gil() -> None:
    """However many threads, together they use one core; it is said, unless others took so much that it may not be told."""
    found = alone(hr.stage("python", count_up), [b"x"] * 8, {"stages": {"python": {"workers": 4}}}, seconds=0.5)
    assert [point.workers for point in found.curve][:3] == [1, 2, 4]
    assert all(point.workers * (point.cpu or 0.0) / point.service < 1.2 for point in found.curve)
    # On one core at a time nobody waits for a core, and an item costs the same, unless the machine is shared. What is said of
    # such curves is tested with curves that are given, in test_isolation_curves.py.
    costs = [point.cpu or 0.0 for point in found.curve]
    delays = [(point.run_delay or 0.0) / point.service for point in found.curve]
    assert "probably holds the GIL" in found.says or max(costs) > 1.2 * min(costs) or max(delays) > 0.1


@pytest.mark.measures
def test_processes_compute_where_threads_would_wait() -> None:
    """The child's CPU time is counted, and its workers do not wait for one another."""
    table = {"stages": {"python": {"executor": "process", "workers": 1}}}
    # From the standard library, because a child must be able to import it.
    found = alone(hr.stage("python", statistics.pstdev), [list(range(5_000))] * 4, table)
    assert found.executor == "process"
    assert found.cpu_demand is not None
    assert found.wait_demand is not None
    assert found.cpu_demand > 0.0001
    assert found.wait_demand < found.cpu_demand
    assert "GIL" not in found.says


@pytest.mark.measures
def test_a_device_shows_its_cost_curve() -> None:
    """20 ms + 5 ms per item of the emulated device at least; larger batches give more, and calls side by side nothing."""
    table = {
        "stages": {"process": {"batch": 4}},
        "model": {"engine": "emulated", "options": {"launch_seconds": 0.02, "item_seconds": 0.005}},
    }
    (stage,) = Emulated().stages()
    found = alone(stage, [np.zeros(2, np.float32)] * 8, table)
    one_call = {point.batch_size: point for point in found.curve if point.workers == 1}
    assert sorted(one_call) == [1, 2, 4]
    for size, point in one_call.items():
        assert point.service > 0.95 * (0.02 + 0.005 * size)
    assert one_call[4].throughput > one_call[1].throughput
    beside = [point for point in found.curve if point.batch_size == 4]
    assert len(beside) == 2
    assert all(point.throughput < 1.1 * 4 / 0.04 for point in beside)
    assert found.cpu_demand is not None
    assert found.cpu_demand < 0.5 * one_call[1].service


def test_a_stage_that_cannot_be_opened_says_why() -> None:
    """And the others are measured all the same."""

    class Unlucky(Stage):
        """Opens once, for collecting."""

        opened = 0

        def open(self, context: StageContext) -> Callable[[Any], Any]:
            type(self).opened += 1
            if type(self).opened > 1:
                raise RuntimeError("no more of these")
            return lambda value: value

    found = alone(Unlucky("unlucky"), [1])
    assert found.curve == ()
    assert "no more of these" in found.says


def test_fewer_workers_than_wanted_are_told() -> None:
    """What can be opened is measured, though four were to be."""

    class Scarce(Stage):
        """Opens for the first two workers."""

        def open(self, context: StageContext) -> Callable[[Any], Any]:
            if context.worker > 1:
                raise RuntimeError("no license left")
            return lambda value: value

    found = alone(Scarce("scarce"), [1], {"stages": {"scarce": {"workers": 4}}}, seconds=0.1)
    assert [point.workers for point in found.curve] == [1, 2]
    assert "because 4 could not be opened: RuntimeError: no license left" in found.says


def test_a_stage_that_changes_its_input_gets_copies() -> None:
    """Each call sees what the stage was really given."""
    seen: set[float] = set()

    def clear(value: np.ndarray) -> None:
        seen.add(float(value[0]))
        value[:] = 0

    found = alone(hr.stage("clear", clear), [np.ones(4)], seconds=0.1)
    assert seen == {1.0}
    assert "in place" in found.says


def test_a_stage_whose_calls_fail_is_told() -> None:
    """Calls that fail while it is measured are counted with the first reason."""
    calls = threading.local()

    def fail_often(value: int) -> int:
        calls.number = getattr(calls, "number", 0) + 1
        if calls.number % 2 == 0:
            raise ValueError("even call")
        return value

    found = alone(hr.stage("flaky", fail_often), [1], seconds=0.1)
    assert "failed while it was measured" in found.says
    assert "even call" in found.says


def test_a_stop_ends_a_long_call_soon() -> None:
    """Workers that are in the midst of a call are left behind; what was asked for is not waited for."""
    stage = hr.stage("slow", lambda value: time.sleep(0.01))
    parts = PipelineParts.of(hr.Pipeline(source=ListSource([1]), stages=[stage]), Plan())
    inputs = collect(parts, 1, lambda: False)
    started = time.monotonic()
    stretch = Stretch(Setting(2, None), [inputs.stages["slow"].given[:1]], 60.0)
    run_stretches(parts, stage, [stretch], lambda: time.monotonic() > started + 0.2)
    assert stretch.measurement is None
    assert time.monotonic() - started < 20


@pytest.mark.measures
def test_cpu_time_of_a_stages_own_threads_is_counted() -> None:
    """A stage that leaves its work to another thread costs what that thread costs, and waits for nothing outside."""

    class Pooled(Stage):
        """Works in a thread of its own."""

        def open(self, context: StageContext) -> Callable[[Any], Any]:
            pool = ThreadPoolExecutor(1)
            return lambda value: pool.submit(count_up, value).result()

    found, direct = alone(Pooled("pooled"), [1]), alone(hr.stage("direct", count_up), [1])
    assert found.cpu_demand is not None
    assert direct.cpu_demand is not None
    assert found.cpu_demand > 0.5 * direct.cpu_demand
    assert found.wait_demand is None
    assert "on threads of its libraries" in found.says


@pytest.fixture(scope="module")
def whole() -> IsolationDocument:
    """Return the stage benchmark of a pipeline with a slow preprocessing: 5 ms in one worker, a device that takes 1 ms."""
    source = ListSource([np.zeros(2, np.float32)] * 12)
    delivery = hr.collect()
    stages = [hr.emulated("preprocess", seconds=0.005), *Emulated().stages()]
    pipeline = hr.Pipeline(source=source, stages=stages, delivery=delivery, name="slow-feeding")
    plan = Plan.from_table(
        {
            "stages": {"preprocess": {"workers": 1}, "process": {"batch": 4}},
            "model": {"engine": "emulated", "options": {"item_seconds": 0.001}},
        }
    )
    found = isolate(pipeline, plan, items=8, seconds=0.2, repetitions=3)
    assert delivery.results == []
    assert {ends[-1].kind for ends in source.outcomes.values()} == {OutcomeKind.RETURNED}
    return found


@pytest.mark.measures
def test_perfect_feeding_reaches_the_device(whole: IsolationDocument) -> None:
    """200/s as it is and 1,000/s fed from memory at most: the headroom is five on a quiet machine, or lost in noise.

    Of three runs the slowest, for what waited while the machine stood still may come in a burst.
    """
    slowest = {one.name: one.throughput_low for one in whole.variations}
    assert slowest["as_is"] < 1.1 * 200
    assert slowest["cached_items"] < 1.1 * 1000
    assert whole.device_ceiling is not None
    assert "made up" in whole.says[-1]
    if "could not be told from noise" not in whole.says[0]:
        assert whole.says[0].startswith("fed perfectly the device would give")
        assert whole.feeding_headroom > 1.2


@pytest.mark.measures
def test_the_text_of_a_whole_document(whole: IsolationDocument) -> None:
    """Names the pipeline, each stage and each variation."""
    text = as_text(whole)
    for part in ("slow-feeding", "preprocess", "process", "as_is", "cached_items", "cold_files"):
        assert part in text
    assert whole.num_items == 8


@pytest.mark.measures
def test_an_emulated_model_frees_the_cpu() -> None:
    """The twin takes the device's time, no less and not much more, and downstream stages get real results."""
    kinds: set[type] = set()

    class Sleepy(hr.Module):
        """A device that is no emulated engine: 4 ms + 1 ms per item."""

        input = hr.ArrayInput()

        def process(self, batch: Any) -> list[dict[str, int]]:
            """Return labels."""
            time.sleep(0.004 + 0.001 * len(batch))
            return [{"label": 1} for _ in batch]

        def postprocess(self, result: Any) -> int:
            """Return the label."""
            kinds.add(type(result))
            return int(result["label"])

    pipeline = hr.Pipeline(source=ListSource([np.zeros(2)] * 8), module=Sleepy())
    plan = Plan.from_table({"stages": {"process": {"batch": 4}}})
    found = isolate(pipeline, plan, items=8, seconds=0.3, repetitions=1)
    by_name = {variation.name: variation for variation in found.variations}
    one = by_name["emulated_model"]
    assert 0.3 * by_name["as_is"].throughput < one.throughput < 1.1 * 500  # 8 ms per batch of 4
    assert "results are made up" in one.says
    assert kinds == {dict}


def test_the_delivery_is_measured_only_when_asked() -> None:
    """Then its results are delivered again and again, by the real delivery."""
    delivery = hr.collect()
    pipeline = hr.Pipeline(source=ListSource([1, 2]), stages=[hr.stage("a", abs)], delivery=delivery)
    again = hr.Pipeline(source=ListSource([1, 2]), stages=[hr.stage("a", abs)], delivery=delivery)
    quietly = isolate(pipeline, Plan(), items=2, seconds=0.05, repetitions=1)
    assert [stage.name for stage in quietly.stages] == ["a"]
    assert delivery.results == []
    asked = isolate(again, Plan(), items=2, seconds=0.05, repetitions=1, deliver=True)
    assert [stage.name for stage in asked.stages] == ["a", "deliver"]
    assert len(delivery.results) > 2


def test_a_stop_keeps_what_was_measured() -> None:
    """The first stage is there, the rest is said to be missing."""
    told: list[str] = []
    pipeline = hr.Pipeline(source=ListSource([1] * 4), stages=[hr.stage("a", abs), hr.stage("b", abs)])

    def stop() -> bool:
        return any("stage b alone" in text for text in told)

    found = isolate(pipeline, Plan(), items=4, seconds=0.05, repetitions=1, progress=told.append, stop=stop)
    assert found.stages[0].curve
    assert all(one.throughput is None for one in found.variations)
    assert "stopped" in found.says[0]


def test_cold_files_are_cold_or_say_why_not(tmp_path: Path) -> None:
    """Where the kernel lets go of files, they are measured cold; where it does not, no number is given."""
    for number in range(12):
        (tmp_path / f"{number:02}.jpg").write_bytes(os.urandom(50_000))
    paths = sorted(tmp_path.iterdir())
    for path in paths:
        evict(path)
    can = residency(paths).share == 0.0
    pipeline = hr.Pipeline(
        source=hr.folder(tmp_path), stages=[hr.fetch("fetch"), hr.emulated("process", seconds=0.002)]
    )
    found = {one.name: one for one in isolate(pipeline, Plan(), items=4, seconds=0.1, repetitions=1).variations}
    assert found["warm_files"].throughput is not None
    if can:
        assert found["cold_files"].throughput is not None
    else:
        assert found["cold_files"].throughput is None
        assert "still in memory" in found["cold_files"].says


def test_a_pipeline_that_breaks_in_a_run_says_why() -> None:
    """One that cannot be run again after collecting: each variation gives its reason."""

    class Once(Stage):
        """Opens for collecting and alone, and not in a thread of a run."""

        def open(self, context: StageContext) -> Callable[[Any], Any]:
            if threading.current_thread().name.startswith("once-"):
                raise RuntimeError("the device is gone")
            return lambda value: value

    pipeline = hr.Pipeline(source=ListSource([1] * 4), stages=[Once("once")])
    found = isolate(pipeline, Plan(), items=4, seconds=0.05, repetitions=2)
    as_is = next(one for one in found.variations if one.name == "as_is")
    assert as_is.throughput is None
    assert "the device is gone" in as_is.says
